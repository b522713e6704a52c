#include "faults.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace broken {
namespace {

const std::string& chosen() {
  static const std::string name = [] {
    const char* value = std::getenv("RW_BROKEN_PLUGIN");
    return std::string(value == nullptr ? "" : value);
  }();
  return name;
}

}  // namespace

bool fault(std::string_view name) { return chosen() == name; }

void enter(std::string_view call) {
  const std::string& name = chosen();
  const std::size_t dash = name.find('-');
  if (dash == std::string::npos || std::string_view(name).substr(dash + 1) != call) return;
  const std::string_view what = std::string_view(name).substr(0, dash);
  if (what == "crash") raise(SIGSEGV);
  if (what == "kill") raise(SIGKILL);
  if (what == "exit") std::exit(3);
  while (what == "hang") pause();
}

}  // namespace broken
