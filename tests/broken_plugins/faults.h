// How a test changes the plugin: the variable RW_BROKEN_PLUGIN names one fault, usually by the id
// of the rule that it breaks, or several with commas between. Unset or empty: a plugin that keeps
// all rules.
//
// crash-CALL, kill-CALL, hang-CALL and exit-CALL crash, kill, hang or end the process at the entry
// of that function, as NCCL spells it.
//
// Unusual, but right, and found in plugins that work with NCCL:
//   allocated-names     getProperties allocates the device's name at each call
//   few-requests        an error for more than 8 requests at once
//   one-receive         maxRecvs is 1, and test of any but the oldest request an error
//   null-handles        regMr gives NULL, and deregMr takes it
//   refuses-null        regMr never gives NULL, and deregMr(NULL) crashes
//   null-context        init gives NULL, which finalize takes
//   finalize-needs-init finalize is an error without an init before it, and so is finalize(NULL)
//   ignores-sizes       test clears *size of sends, which NCCL does not look at
//   no-multi-request    getProperties leaves maxMultiRequestSize as it was
//   warns               a warning in the log at each init, and at the third connect of a process
#pragma once

#include <string>
#include <string_view>

namespace broken {

/// Whether the named fault is chosen.
bool fault(std::string_view name);

/// At the entry of each function.
void enter(std::string_view call);

}  // namespace broken
