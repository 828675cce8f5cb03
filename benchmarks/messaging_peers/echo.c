/* The echo of the benchmark as a native handler. */
#include "l5_handler.h"

int echo(void *state, const struct l5_request *request, struct l5_reply *reply);

int echo(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    (void)state;
    return l5_reply_append(reply, request->data, request->size);
}
