/* Test program of the tree's C core; built plain and under sanitizers by test_native.py.
 *
 *   tree_main model SEED STEPS      random operations against a list, in a small arena that fills up
 *   tree_main agree SEED ROUNDS     every kernel builds the same bytes and gives the same answers (avx512: emulated)
 *   tree_main threads KERNEL OPS    readers and writers at once; the readers check what rtree.h guarantees
 *   tree_main walk SEED ROUNDS      walks through copies, with a writer between any two words
 *   tree_main view SEED ROUNDS      a view of the memory, sound and spoilt
 */
#include "tree_test.h"

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "model"))
        return model_main(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (argc == 4 && !strcmp(argv[1], "agree"))
        return agree_main(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (argc == 4 && !strcmp(argv[1], "threads"))
        return threads_main(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 4 && !strcmp(argv[1], "walk"))
        return walk_main(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (argc == 4 && !strcmp(argv[1], "view"))
        return view_main(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    fprintf(stderr, "usage: tree_main model SEED STEPS | agree SEED ROUNDS | threads KERNEL OPS | view SEED ROUNDS | walk ...\n");
    return 2;
}
