/* The public C functions of l5._native; this file is also the cffi cdef, hence plain declarations. */
int l5_install_fast(void);
int l5_segment_create(uint64_t ring_bytes);
int l5_segment_lock(int fd, uint64_t ring_bytes, const char **why);
