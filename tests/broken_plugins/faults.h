// How a test breaks the plugin: the variable RW_BROKEN_PLUGIN names one fault, usually by the id of
// the rule that it breaks. Unset or empty: a plugin that keeps all rules.
//
// crash-CALL, kill-CALL, hang-CALL and exit-CALL do so at the entry of that function, as NCCL
// spells it.
#pragma once

#include <string>
#include <string_view>

namespace broken {

/// Whether the named fault is the chosen one.
bool fault(std::string_view name);

/// At the entry of each function.
void enter(std::string_view call);

}  // namespace broken
