/* What Python calls of mailbox.h; this file is also the cffi cdef, hence plain declarations. */
int l5_mirror_map(uint64_t bytes, uint8_t **base);
void l5_mirror_unmap(uint8_t *base, uint64_t bytes);
