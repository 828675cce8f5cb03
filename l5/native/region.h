/* Remote memory: a sealed memfd of its owner's, mapped by peers, and the accesses to it.
 *
 *   byte 0                        size_bytes          map_bytes (whole pages)
 *   | what users see              | zeros, never shown |
 *
 * Theory.  Peers run at the same time and follow a protocol of their application's (versions, locks),
 * which needs three promises of the accesses here, on every machine:
 *
 *   - an aligned word of 8 bytes is read and written whole;
 *   - copies go forward: what stands before is read before what stands behind it, and written before
 *     (each load acquires, each store releases; on x86 both are plain moves);
 *   - compare_swap and fetch_add are atomic with respect to each other in all processes, and to
 *     the words of copies.
 *
 * Of bytes beside words, at the ends of an access that is not aligned, only each byte is whole.
 *
 * The file: the owner fills it (no holes, so that nobody who maps it allocates), maps it for
 * writing, seals SHRINK and GROW, for readers' regions FUTURE_WRITE (no new writable mapping, no
 * write, no hole punching, by anybody), and SEAL.  A peer verifies all that before it maps: then
 * nothing that the owner does to the file can raise SIGBUS in it or make it allocate.  A region
 * that grants writing cannot be sealed against hole punching; who may write it may as well zero it.
 *
 * Huge pages: as many whole ones of 2 MiB as fit are asked for when the file is filled, and who maps
 * it does so on a boundary of theirs, or they would be mapped in pieces.  They are no promise.
 */
#ifndef L5_REGION_H
#define L5_REGION_H

#include <stddef.h>
#include <stdint.h>

#include "_atomic.h"

#define L5_REGION_BYTES_MAX (1ull << 40)

/* The file.  A descriptor or 0, or -errno; `why` says in words what -EPERM is about. */
int l5_region_create(uint64_t size_bytes);
int l5_region_seal(int fd, int writable);
int l5_region_verify(int fd, uint64_t size_bytes, int writable, const char **why);

/* Mappings, of whole pages.  `alien`: another process's memory, which a forked child does not get. */
uint64_t l5_region_map_bytes(uint64_t size_bytes);
int l5_region_map(int fd, uint64_t size_bytes, int writable, int alien, uint8_t **base);
void l5_region_unmap(uint8_t *base, uint64_t map_bytes);

/* Copies: `there` is the region's.  Bounds are the caller's business. */
void l5_region_read(void *here, const uint8_t *there, size_t bytes);
void l5_region_write(uint8_t *there, const void *here, size_t bytes);

#endif
