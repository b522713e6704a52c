// The signal of the setting TRACE_SIGNAL, at which communicators write their records.
#pragma once

#include <string_view>

namespace ropewalk::trace_signal {

/// Catches the signal called `name` ("USR1", "USR2") from now on, if the program has no handler of
/// its own for it; then this is logged, and it stays. "none" catches nothing.
/// @return what can be read when the signal came, of which this process has one; -1: nothing
int watch(std::string_view name) noexcept;

/// @return whether the signal came since the last call. `fd` is as watch() gave it.
bool take(int fd) noexcept;

}  // namespace ropewalk::trace_signal
