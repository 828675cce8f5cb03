// Peer: boost::geometry's R*-tree with 16 entries a node.
//
//     boost_peer FOLDER packed|inserted
//
// The tree is made of FOLDER/data.f64; then commands of stdin are obeyed, see loop.h.
#include <boost/geometry.hpp>
#include <boost/geometry/index/rtree.hpp>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loop.h"

namespace bg = boost::geometry;
namespace bgi = boost::geometry::index;
using Point = bg::model::point<double, 2, bg::cs::cartesian>;
using Box = bg::model::box<Point>;
using Entry = std::pair<Box, unsigned>;
using Tree = bgi::rtree<Entry, bgi::rstar<16>>;

static std::vector<Entry> found;

static Box box_of(const double *r) { return Box(Point(r[0], r[1]), Point(r[2], r[3])); }

static size_t search(void *tree, const double *query) {
    found.clear();
    static_cast<Tree *>(tree)->query(bgi::intersects(box_of(query)), std::back_inserter(found));
    return found.size();
}

static void insert(void *tree, const double *rect, size_t id) {
    static_cast<Tree *>(tree)->insert(Entry(box_of(rect), static_cast<unsigned>(id)));
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t n = 0;
    double *data = read_rects(argv[1], "data", &n);
    std::unique_ptr<Tree> tree;
    found.reserve(1 << 16);
    double start = seconds();
    if (std::string(argv[2]) == "packed") {
        std::vector<Entry> entries;
        entries.reserve(n);
        for (size_t i = 0; i < n; i++) entries.emplace_back(box_of(data + 4 * i), static_cast<unsigned>(i));
        start = seconds();
        tree = std::make_unique<Tree>(entries.begin(), entries.end());
    } else {
        tree = std::make_unique<Tree>();
        for (size_t i = 0; i < n; i++) insert(tree.get(), data + 4 * i, i);
    }
    loop peer = {tree.get(), n, seconds() - start, search, insert, nullptr};
    return obey(&peer, argv[1]);
}
