/* The public C functions of l5._native; this file is also the cffi cdef, hence plain declarations. */
int l5_install_fast(void);
int l5_segment_create(uint64_t ring_bytes);
int l5_segment_lock(int fd, uint64_t ring_bytes, const char **why);

/* Versioned pages (page.c); `copies` is how a copy was made, see l5_page.h. */
enum l5_pages_copies { L5_PAGES_LINES = 1, L5_PAGES_ASCENDING = 2, L5_PAGES_WORDS = 3 };
void l5_pages_begin(uint8_t *page);
void l5_pages_patch(uint8_t *page, uint64_t offset, const uint8_t *data, uint64_t bytes);
void l5_pages_end(uint8_t *page, uint32_t lines);
void l5_pages_write(uint8_t *page, uint32_t lines, const uint8_t *data, uint64_t bytes);
int l5_pages_read(uint8_t *payload, const uint8_t *page, uint32_t lines, uint32_t tries, uint64_t *retries);
int l5_pages_take(uint8_t *payload, const uint8_t *copy, uint32_t lines, int copies, uint32_t before, uint32_t after);
uint64_t l5_pages_crc64(uint64_t crc, const uint8_t *data, uint64_t bytes);

/* Files of remote memory (region.c). */
int l5_region_create(uint64_t size_bytes);
int l5_region_seal(int fd, int writable);
int l5_region_verify(int fd, uint64_t size_bytes, int writable, const char **why);
