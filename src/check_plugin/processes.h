// Processes that a plugin started, found by their parent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace ropewalk::check_plugin {

struct Process {
  pid_t pid;
  std::string name;
};

/// Those that run (or are zombies) with one of these parents.
std::vector<Process> children_of(const std::vector<pid_t>& parents);

/// From now on what the children of this process leave behind becomes its own child.
void adopt_orphans();

/// Kills and reaps all children of this process but those named, and their orphans. Call it when
/// the rule's own children have been reaped.
///
/// @param grace for those that end by themselves, as they see that the program has ended
/// @return those that were still running after it
std::vector<Process> end_orphans(const std::vector<pid_t>& spared, std::chrono::milliseconds grace);

}  // namespace ropewalk::check_plugin
