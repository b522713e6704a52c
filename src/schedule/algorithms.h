// The compilers, one per file, for registry.cc. Each is called with num_ranks >= 2 (one rank needs
// no algorithm) and with ranks, root and channels in range.
#pragma once

#include "schedule/compile.h"

namespace ropewalk::schedule {

extern const Algorithm kRing;
extern const Algorithm kChain;
extern const Algorithm kBinaryTree;
extern const Algorithm kDoubleBinaryTree;
extern const Algorithm kRecursiveDoubling;
extern const Algorithm kOneShot;
extern const Algorithm kTwoShot;
extern const Algorithm kDirect;
extern const Algorithm kHierarchical;

}  // namespace ropewalk::schedule
