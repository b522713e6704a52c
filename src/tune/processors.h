// Which processors ranks may run on, and so whether they have to share them.
#pragma once

#include <sched.h>

#include <array>
#include <cstdint>
#include <istream>
#include <span>
#include <string>
#include <string_view>

namespace ropewalk::tune {

/// A set of processors, by the kernel's numbers; those from 1024 on are left out.
struct Processors {
  std::array<std::uint64_t, 16> bits{};

  /// Those that the calling thread may run on; one where the system does not say.
  static Processors usable();
  /// Parses a list as the kernel writes it, "0-15,32-47"; empty if it is not such a list.
  static Processors of_list(std::string_view list);
  [[nodiscard]] int count() const noexcept;
  /// How many are in both.
  [[nodiscard]] int in_common(const Processors& other) const noexcept;
  /// The lowest number; -1 where there is none.
  [[nodiscard]] int first() const noexcept;
  [[nodiscard]] bool within(const Processors& other) const noexcept;
  friend auto operator<=>(const Processors&, const Processors&) = default;
};

/// Lets the calling thread run on all of the machine's processors that its container permits, for
/// as long as this object is there: a launcher may have bound it to one.
class OnAllProcessors {
 public:
  OnAllProcessors();
  ~OnAllProcessors();
  OnAllProcessors(const OnAllProcessors&) = delete;
  OnAllProcessors& operator=(const OnAllProcessors&) = delete;

 private:
  cpu_set_t before_;
  bool known_ = false;
};

/// The machine whose kernel numbers the processors: its boot id. Containers and network namespaces
/// of one machine have the same one.
std::string machine_identity();

/// The kind of processor, as the kernel reports it: vendor, family, model and stepping of the first
/// one. "unknown" if it reports nothing.
std::string processor_kind();
/// The same from the text of /proc/cpuinfo.
std::string processor_kind(std::istream& cpuinfo);

/// How many of a machine's ranks have to share a processor, at most: for any set of processors, the
/// number of ranks that may run only there, divided by the set's size. At most 1 when each rank can
/// have one for itself. (By Hall's theorem one would have to look at all unions of sets; the sets
/// themselves and the union of all are what binding programs make.)
/// @param each of every rank of the machine
double ranks_per_processor(std::span<const Processors> each);

}  // namespace ropewalk::tune
