#include "schedule/repeat.h"

#include "core/error.h"

namespace ropewalk::schedule {
namespace {

template <typename T>
std::vector<T> each_repeated(const std::vector<T>& one, int times) {
  std::vector<T> all;
  all.reserve(one.size() * static_cast<std::size_t>(times));
  for (const T& element : one) all.insert(all.end(), static_cast<std::size_t>(times), element);
  return all;
}

}  // namespace

Schedule repeated(const Schedule& schedule, int times) {
  if (times < 1) throw Error(Errc::kInvalidArgument, "a schedule repeated {} times", times);
  Schedule all = schedule;
  all.weight = each_repeated(schedule.weight, times);
  for (std::vector<StepList>& program : all.programs) program = each_repeated(program, times);
  return all;
}

}  // namespace ropewalk::schedule
