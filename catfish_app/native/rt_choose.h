/* The writer's choice among the children of a node: R*-tree (Beckmann and others, 1990), section 4.1. Internal: included by
 * rt_traverse.h, so it is compiled once per instruction set; the loops are written for the compiler's vectorizer.
 * Every kernel adds in the same order (eight partial sums, never contracted), so all choose alike. They run over all places of
 * a node; what they make of the versions between the entries is looked at by nobody, or is 0.
 *
 *   1. Some boxes hold the rectangle already: the smallest of them. This is by far the most common case.
 *   2. Children are inner nodes: the least enlargement of area; then of margin (areas are all 0 in data on a line).
 *   3. Children are leaves: of the RT_CANDIDATES of least area enlargement, the one whose overlap with the others grows least. The
 *      candidates come in order of area enlargement, which decides ties, so the first that adds no overlap is it.
 */

#define RT_CANDIDATES 8
#define RT_LANES 8

struct growth {
    float area[RT_INNER_PLACES];
    float margin[RT_INNER_PLACES];
};

static inline float fmin2(float a, float b)
{
    return a < b ? a : b;
}
static inline float fmax2(float a, float b)
{
    return a > b ? a : b;
}

static inline void measure_growth(const struct rt_node *node, struct rt_fbox box, struct growth *out)
{
    for (unsigned i = 0; i < RT_INNER_PLACES; i++) {
        float lo_x = node->inner.box[LO_X][i], lo_y = node->inner.box[LO_Y][i];
        float hi_x = node->inner.box[HI_X][i], hi_y = node->inner.box[HI_Y][i];
        float w = hi_x - lo_x, h = hi_y - lo_y;
        float wu = fmax2(hi_x, box.v[HI_X]) - fmin2(lo_x, box.v[LO_X]);
        float hu = fmax2(hi_y, box.v[HI_Y]) - fmin2(lo_y, box.v[LO_Y]);
        out->area[i] = wu * hu - w * h;
        out->margin[i] = (wu - w) + (hu - h);
    }
}

static inline unsigned smallest_area(const struct rt_node *node, uint64_t mask)
{
    unsigned best = (unsigned)__builtin_ctzll(mask);
    float best_area = INFINITY;
    for (; mask; mask &= mask - 1) {
        unsigned i = (unsigned)__builtin_ctzll(mask);
        float area = (node->inner.box[HI_X][i] - node->inner.box[LO_X][i]) * (node->inner.box[HI_Y][i] - node->inner.box[LO_Y][i]);
        if (area < best_area) {
            best_area = area;
            best = i;
        }
    }
    return best;
}

static inline bool grows_less(const struct growth *growth, unsigned a, unsigned b)
{
    return growth->area[a] < growth->area[b] || (growth->area[a] == growth->area[b] && growth->margin[a] < growth->margin[b]);
}

static inline unsigned least_growth(const struct growth *growth, uint64_t places)
{
    unsigned best = (unsigned)__builtin_ctzll(places);
    for (; places; places &= places - 1)
        if (grows_less(growth, (unsigned)__builtin_ctzll(places), best))
            best = (unsigned)__builtin_ctzll(places);
    return best;
}

/* The candidates in order of growth: insertion into a short sorted list. */
static inline unsigned pick_candidates(const struct growth *growth, uint64_t places, unsigned char *out)
{
    unsigned n = 0;
    for (; places; places &= places - 1) {
        unsigned i = (unsigned)__builtin_ctzll(places);
        if (n == RT_CANDIDATES && !grows_less(growth, i, out[n - 1]))
            continue;
        unsigned at = n < RT_CANDIDATES ? n++ : n - 1;
        for (; at > 0 && grows_less(growth, i, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = (unsigned char)i;
    }
    return n;
}

/* How much more the box in place i overlaps all the others once it has grown. With itself it adds 0, as do the versions:
 * read as a box, four equal numbers have no extent. */
static inline float overlap_growth(const struct rt_node *node, unsigned end, unsigned i, struct rt_fbox box)
{
    struct rt_fbox old = rt_entry_fbox(node, rt_inner_slot(i)), grown = rt_fbox_union(old, box);
    float sum[RT_LANES] = {0}, total = 0;
    for (unsigned j = 0; j < RT_INNER_PLACES; j += RT_LANES) {
        for (unsigned k = 0; k < RT_LANES; k++) {
            float lo_x = node->inner.box[LO_X][j + k], lo_y = node->inner.box[LO_Y][j + k];
            float hi_x = node->inner.box[HI_X][j + k], hi_y = node->inner.box[HI_Y][j + k];
            float w = fmax2(fmin2(grown.v[HI_X], hi_x) - fmax2(grown.v[LO_X], lo_x), 0);
            float h = fmax2(fmin2(grown.v[HI_Y], hi_y) - fmax2(grown.v[LO_Y], lo_y), 0);
            float w0 = fmax2(fmin2(old.v[HI_X], hi_x) - fmax2(old.v[LO_X], lo_x), 0);
            float h0 = fmax2(fmin2(old.v[HI_Y], hi_y) - fmax2(old.v[LO_Y], lo_y), 0);
            float more = w * h - w0 * h0;
            sum[k] += j + k < end ? more : 0;
        }
    }
    for (unsigned k = 0; k < RT_LANES; k++)
        total += sum[k];
    return total;
}

static unsigned choose(const struct rt_node *node, struct rt_fbox box)
{
    uint64_t mask = containing(node, box), places = rt_inner_places(rt_count_of(node));
    if (mask)
        return rt_inner_slot(smallest_area(node, mask));
    struct growth growth;
    measure_growth(node, box, &growth);
    if (rt_level_of(node) > 1)
        return rt_inner_slot(least_growth(&growth, places));
    unsigned char candidates[RT_CANDIDATES] = {0};
    unsigned n = pick_candidates(&growth, places, candidates), best = candidates[0];
    unsigned end = rt_inner_at(rt_count_of(node));
    float best_overlap = INFINITY;
    for (unsigned i = 0; i < n && best_overlap > 0; i++) {
        float overlap = overlap_growth(node, end, candidates[i], box);
        if (overlap < best_overlap) {
            best_overlap = overlap;
            best = candidates[i];
        }
    }
    return rt_inner_slot(best);
}
