#include "plan/link_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace ropewalk::plan {

LinkSplit split_over_classes(const std::vector<LinkClass>& classes, double bytes) {
  if (classes.empty()) throw Error(Errc::kInvalidArgument, "split: there is no class of links");
  if (!std::isfinite(bytes) || bytes < 0) {
    throw Error(Errc::kInvalidArgument, "split: {} is no number of bytes", bytes);
  }
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const LinkClass& each = classes[i];
    if (!std::isfinite(each.bytes_per_us) || each.bytes_per_us <= 0 ||
        !std::isfinite(each.setup_us) || each.setup_us < 0) {
      throw Error(Errc::kInvalidArgument,
                  "split: classes[{}] needs a rate above zero and a set-up time of 0 or more", i);
    }
  }
  std::vector<std::size_t> order(classes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return classes[a].setup_us < classes[b].setup_us;
  });
  LinkSplit out;
  out.bytes.assign(classes.size(), 0.0);
  double rate = 0;
  double credit = bytes;
  for (const std::size_t i : order) {
    if (rate > 0 && classes[i].setup_us >= out.time_us) break;
    rate += classes[i].bytes_per_us;
    credit += classes[i].bytes_per_us * classes[i].setup_us;
    out.time_us = credit / rate;
  }
  for (std::size_t i = 0; i < classes.size(); ++i) {
    out.bytes[i] = std::max(0.0, classes[i].bytes_per_us * (out.time_us - classes[i].setup_us));
  }
  return out;
}

}  // namespace ropewalk::plan
