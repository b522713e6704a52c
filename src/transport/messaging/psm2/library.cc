#include "transport/messaging/psm2/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/log.h"
#include "transport/messaging/psm2/interception.h"

namespace ropewalk::transport::psm2 {
namespace {

thread_local std::vector<Library::FailedCopy> failed_copies;

// Replaces libpsm2's calls of process_vm_readv and process_vm_writev. libpsm2 aborts the process
// when they fail, as they do for a process that was killed during a message. This function reports
// success instead, so libpsm2 finishes the message, and the connection that finds its buffer among
// the failed copies ends.
template <auto Copy>
ssize_t copy_or_pretend(pid_t process, const iovec* local, unsigned long local_count,
                        const iovec* remote, unsigned long remote_count, unsigned long flags) {
  for (;;) {
    const ssize_t copied = Copy(process, local, local_count, remote, remote_count, flags);
    if (copied > 0 || local == nullptr || local_count == 0) return copied;
    if (copied < 0 && errno == EINTR) continue;
    failed_copies.push_back({local[0].iov_base, errno});
    std::size_t all = 0;
    for (unsigned long i = 0; i < local_count; ++i) all += local[i].iov_len;
    return static_cast<ssize_t>(all);
  }
}

// Replaces its calls of pthread_spin_lock(). A process that is killed while it puts a packet into a
// queue in shared memory leaves the queue's lock held, and libpsm2 would spin for ever in each
// other sender. A lock is held for less than a microsecond, so that one which is held this long has
// lost its owner; the queue may lack a packet then.
int lock_or_inherit(pthread_spinlock_t* lock) {
  constexpr auto kOwnerIsGone = std::chrono::seconds(1);
  constexpr int kTries = 1000;
  if (pthread_spin_trylock(lock) == 0) return 0;
  const auto since = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < kTries; ++i) {
      if (pthread_spin_trylock(lock) == 0) return 0;
    }
    if (std::chrono::steady_clock::now() - since > kOwnerIsGone) return 0;
    sched_yield();
  }
}

// Replaces its calls of stat() if there is no adapter: reports one, so that initialising does not
// fail. It is never opened.
int stat_of_one_adapter(const char* path, struct stat* result) {
  if (std::string_view(path) == "/dev/hfi1_0") {
    std::memset(result, 0, sizeof *result);
    return 0;
  }
  return stat(path, result);
}

// A device's absence is decided here, and once.
struct Decided {
  std::mutex mutex;
  std::optional<Library::Found> found;
  std::string file;
  bool shared_memory = false;
};
Decided& decided() {
  static Decided one;
  return one;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool Library::copies_failed() noexcept { return !failed_copies.empty(); }

std::vector<Library::FailedCopy> Library::take_failed_copies() {
  return std::exchange(failed_copies, {});
}

Library::Found Library::open(const std::string& file, bool shared_memory) {
  Decided& before = decided();
  const std::lock_guard lock(before.mutex);
  if (before.found && before.found->library) {
    if (before.shared_memory != shared_memory) {
      return {nullptr, "libpsm2 was already initialised in this process, for another PSM2_DEVICE"};
    }
    if (before.file != file) {
      if (Candidate other = find(file, shared_memory); !other.library) {
        return {nullptr, std::move(other.why_not)};
      }
      return {nullptr,
              fmt::format("this process uses {} as libpsm2, and not {}", before.file, file)};
    }
    return *before.found;
  }
  Found found = open_first(file, shared_memory);
  if (found.library) {
    before.found = found;
    before.file = file;
    before.shared_memory = shared_memory;
  }
  return found;
}

Library::Found Library::open_first(const std::string& file, bool shared_memory) {
  const std::string devices = environment("PSM2_DEVICES");
  if (!shared_memory && !devices.empty() && devices.find("hfi") == std::string::npos) {
    return {nullptr, fmt::format("PSM2_DEVICES={} leaves no adapter; PSM2_DEVICE=shm is for "
                                 "libpsm2's shared memory alone, on one host",
                                 devices)};
  }
  // Read when the library is loaded, and when it is initialised.
  if (shared_memory) {
    setenv("PSM2_DEVICES", "self,shm", 1);
    setenv("HFI_SYSFS_PATH", "/sys/class", 1);
    setenv("PSM2_ADDR_FMT", "1", 1);  // ids of a process's endpoints differ by their keys
  }
  setenv("PSM2_MULTI_EP", "1", 0);
  // Its thread would read memory of messages that were given up.
  setenv("PSM2_RCVTHREAD", "0", 0);
  const Candidate found = find(file, shared_memory);
  if (!found.library) return {nullptr, found.why_not};
  if (std::string why_not = found.library->initialise(); !why_not.empty()) {
    return {nullptr, fmt::format("{} cannot be used: {}", file, why_not)};
  }
  return {found.library, {}};
}

Library::Candidate Library::find(const std::string& file, bool shared_memory) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    return {nullptr, fmt::format("{} was not found ({})", file,
                                 reason == nullptr ? "no reason given" : reason)};
  }
  const std::shared_ptr<Library> library(new Library(handle, shared_memory));
  if (std::string why_not = library->load(); !why_not.empty())
    return {nullptr, fmt::format("{} cannot be used: {}", file, why_not)};
  return {library, {}};
}

std::string Library::load() {
  std::string missing;
  const auto load_function = [&](auto& function, const char* name) {
    void* const address = dlsym(handle_, name);
    if (address == nullptr) missing = fmt::format("it has no function {}", name);
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
  };
  load_function(register_handler_, "psm2_error_register_handler");
  load_function(init_, "psm2_init");
  load_function(error_string_, "psm2_error_get_string");
  load_function(capabilities_, "psm2_get_capability_mask");
  load_function(num_units, "psm2_ep_num_devunits");
  load_function(open_defaults, "psm2_ep_open_opts_get_defaults");
  load_function(endpoint_open, "psm2_ep_open");
  load_function(endpoint_connect, "psm2_ep_connect");
  load_function(shares_memory, "psm2_ep_epid_share_memory");
  load_function(queue_init, "psm2_mq_init");
  load_function(send, "psm2_mq_send2");
  load_function(start_send, "psm2_mq_isend2");
  load_function(start_receive, "psm2_mq_irecv2");
  load_function(test, "psm2_mq_test2");
  load_function(probe, "psm2_mq_iprobe2");
  load_function(cancel, "psm2_mq_cancel");
  load_function(poll, "psm2_poll");
  load_function(query, "psm2_info_query");
  return missing;
}

std::string Library::initialise() {
  const bool reads = intercept(handle_, "process_vm_readv",
                               reinterpret_cast<void*>(&copy_or_pretend<process_vm_readv>));
  const bool writes = intercept(handle_, "process_vm_writev",
                                reinterpret_cast<void*>(&copy_or_pretend<process_vm_writev>));
  if (!reads || !writes) {
    // Slower, and no copy that could fail.
    setenv("PSM2_KASSIST_MODE", "none", 1);
    log::info(log::kInit,
              "psm2: libpsm2's copies between processes could not be guarded; "
              "PSM2_KASSIST_MODE=none");
  }
  intercept(handle_, "pthread_spin_lock", reinterpret_cast<void*>(&lock_or_inherit));
  if (shared_memory_) intercept(handle_, "stat", reinterpret_cast<void*>(&stat_of_one_adapter));
  // Its own handler prints, sleeps and ends the process.
  register_handler_(nullptr, reinterpret_cast<abi::ErrorHandler>(-2));
  int major = abi::kMajor;
  int minor = abi::kMinor;
  if (const abi::Error error = init_(&major, &minor); error != abi::kOk) {
    // What counts is the environment at the time when it is loaded.
    const char* const advice =
        shared_memory_
            ? "if another library, such as libfabric, has loaded it before, then PSM2_DEVICE=shm "
              "needs HFI_SYSFS_PATH=/sys/class in the program's environment"
            : "is the driver hfi1 loaded, and has this user access to /dev/hfi1_0?";
    return fmt::format("psm2_init: {}; {}", words(error), advice);
  }
  version_ = fmt::format("{}.{}", major, minor);
  if (major != abi::kMajor) return fmt::format("its interface is {}, not 2.x", version_);
  several_endpoints_ = capabilities_(abi::kCapSeveralEndpoints) == abi::kCapSeveralEndpoints;
  std::uint32_t features = 0;
  if (query(abi::kQueryFeatures, &features, 0, nullptr) != abi::kOk ||
      (features & abi::kFeatureCuda) == 0) {
    why_no_gpu_memory_ = "this libpsm2 was built without CUDA";
  } else if (environment("PSM2_CUDA") != "1") {
    why_no_gpu_memory_ = "PSM2_CUDA=1 is not in the environment";
  }
  return {};
}

std::string Library::words(abi::Error error) const {
  const char* const text = error_string_ == nullptr ? nullptr : error_string_(error);
  return fmt::format("{} ({})", text == nullptr ? "unknown error" : text, error);
}

}  // namespace ropewalk::transport::psm2
