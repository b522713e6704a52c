// libpsm2, found at run time and initialised once: it is for the whole process, and for its life.
//
// libpsm2 reads its settings from the environment. What this transport needs is put there unless
// the user has set it: see docs/transports.md.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/messaging/psm2/abi.h"

namespace ropewalk::transport::psm2 {

/// Threads: any. Stays loaded for ever.
class Library {
 public:
  struct Found {
    std::shared_ptr<const Library> library;  ///< none when it cannot be used
    std::string why_not;
  };
  /// The first call decides for the process: later ones with another file or another device get
  /// the reason why not. Never throws for an absent or unfit library.
  /// @param file a path, or a name that the system's loader finds
  /// @param shared_memory without adapters: libpsm2's shared-memory device alone
  static Found open(const std::string& file, bool shared_memory);

  [[nodiscard]] bool shared_memory() const noexcept { return shared_memory_; }
  /// "2.2"
  [[nodiscard]] const std::string& version_text() const noexcept { return version_; }
  /// Empty where it was built with CUDA, and PSM2_CUDA=1 lets it take GPU memory.
  [[nodiscard]] const std::string& why_no_gpu_memory() const noexcept { return why_no_gpu_memory_; }
  [[nodiscard]] bool several_endpoints() const noexcept { return several_endpoints_; }
  /// libpsm2's words for an error code.
  [[nodiscard]] std::string words(abi::Error error) const;

  /// A copy from a peer's memory that failed: a receive into `to` that libpsm2 reports as complete
  /// lacks its data.
  struct FailedCopy {
    const void* to;
    int error;  ///< errno: ESRCH when the peer has died, EPERM when copying is not permitted
  };
  /// Those of this thread's calls since it last asked.
  static std::vector<FailedCopy> take_failed_copies();
  static bool copies_failed() noexcept;

  abi::NumUnits num_units = nullptr;
  abi::OpenDefaults open_defaults = nullptr;
  abi::EndpointOpen endpoint_open = nullptr;
  abi::EndpointConnect endpoint_connect = nullptr;
  abi::SharesMemory shares_memory = nullptr;
  abi::QueueInit queue_init = nullptr;
  abi::Send send = nullptr;
  abi::StartSend start_send = nullptr;
  abi::StartReceive start_receive = nullptr;
  abi::Test test = nullptr;
  abi::Probe probe = nullptr;
  abi::Cancel cancel = nullptr;
  abi::Poll poll = nullptr;
  abi::Query query = nullptr;

 private:
  Library(void* handle, bool shared_memory) noexcept
      : handle_(handle), shared_memory_(shared_memory) {}
  struct Candidate {
    std::shared_ptr<Library> library;
    std::string why_not;
  };
  /// Loads it, which initialises nothing.
  static Candidate find(const std::string& file, bool shared_memory);
  static Found open_first(const std::string& file, bool shared_memory);
  std::string load();
  std::string initialise();

  void* handle_;
  bool shared_memory_;
  bool several_endpoints_ = false;
  std::string version_;
  std::string why_no_gpu_memory_;
  abi::RegisterHandler register_handler_ = nullptr;
  abi::Init init_ = nullptr;
  abi::ErrorString error_string_ = nullptr;
  abi::Capabilities capabilities_ = nullptr;
};

}  // namespace ropewalk::transport::psm2
