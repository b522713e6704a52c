// A text that the ranks of one host have in common, made by the first of them that needs it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "link/host_segment.h"

namespace ropewalk::machine {

/// Lies in the memory that those ranks share, behind their links. Costs nothing until it is needed.
///
/// Threads and processes: any, each with an object of its own over the same segment.
class SharedText {
 public:
  explicit SharedText(std::shared_ptr<link::HostSegment> segment) : segment_(std::move(segment)) {}

  /// The text, the same for every caller. One caller makes it; the others wait, and call `waiting`
  /// every millisecond, which may throw: the maker may have died.
  ///
  /// @throws Error what `make` throws, and the next caller makes it; kInvalidArgument for one that
  ///         is longer than there is room for; kSystem when there is no memory; kInternal for a
  ///         text that is not as it was made
  std::string get(const std::function<std::string()>& make, const std::function<void()>& waiting);

 private:
  std::shared_ptr<link::HostSegment> segment_;
};

}  // namespace ropewalk::machine
