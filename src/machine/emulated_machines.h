// The machines that the setting EMULATE names, made once for all ranks of a process: reading one of
// 1,024 GPUs takes a tenth of a second, and so does the digest by which ranks compare theirs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/mutex.h"
#include "core/settings.h"
#include "machine/machine.h"

namespace ropewalk::machine {

struct EmulatedMachine {
  std::shared_ptr<const Machine> machine;
  std::uint64_t digest = 0;  ///< of the JSON of the machine that is planned for
};

/// Threads: any number at once; while one makes a machine, the others wait for it.
class EmulatedMachines {
 public:
  /// For `size` ranks, from EMULATE and EMULATE_GPUS. A file that has changed is read again.
  /// @throws Error as topology::named() and emulated_gpus()
  EmulatedMachine get(const Config& config, int size);

 private:
  struct Made {
    std::weak_ptr<const Machine> machine;  // while a communicator has it
    std::uint64_t digest = 0;
  };
  Mutex mutex_;  // also held while one is made
  std::map<std::string, Made> made_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::machine
