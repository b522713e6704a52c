#include "comm/runtime.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <span>
#include <utility>

#include "core/log.h"
#include "core/random.h"
#include "transport/registry.h"
#include "tune/forced_algorithms.h"

namespace ropewalk::comm {

namespace {

// Applies process-wide settings, and refuses values that no communicator accepts.
void apply(const Config& config) {
  (void)tune::forced_algorithms(config.text(Setting::kAlgorithm));
  (void)transport::chosen_provider(config);
  log::configure(config.text(Setting::kDebug), config.text(Setting::kDebugSubsys),
                 config.text(Setting::kDebugFile));
}

// The process's, and in a forked child, until it has one, its parent's.
std::atomic<Runtime*> of_process{nullptr};
std::atomic<Runtime*> of_parent{nullptr};

}  // namespace

Runtime::Runtime() { fill_random(std::as_writable_bytes(std::span(&token_, 1))); }

// The settings are copied in the child, from what another thread must not be writing at the fork.
void Runtime::lock_for_fork() noexcept RW_NO_THREAD_ANALYSIS {
  if (Runtime* runtime = of_process) runtime->config_mutex_.lock();
}

void Runtime::unlock_in_parent() noexcept RW_NO_THREAD_ANALYSIS {
  if (Runtime* runtime = of_process) runtime->config_mutex_.unlock();
}

void Runtime::leave_behind_in_child() noexcept RW_NO_THREAD_ANALYSIS {
  if (Runtime* runtime = of_process.exchange(nullptr)) {
    runtime->config_mutex_.unlock();
    of_parent = runtime;
  }
}

Runtime& Runtime::process() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(lock_for_fork, unlock_in_parent, leave_behind_in_child);
  if (Runtime* runtime = of_process.load(std::memory_order_acquire)) return *runtime;
  auto made = std::make_unique<Runtime>();
  if (Runtime* parent = of_parent.load()) {
    const Lock reading(parent->config_mutex_);
    const Lock writing(made->config_mutex_);
    if (parent->config_ != nullptr) made->config_ = std::make_unique<Config>(*parent->config_);
  }
  Runtime* other = nullptr;
  if (!of_process.compare_exchange_strong(other, made.get())) return *other;
  // Leaked: ranks may leave while static objects are destroyed.
  return *made.release();
}

transport::window::Gpus& Runtime::gpus() {
  const Config settings = config();
  const Lock lock(cuda_mutex_);
  if (cuda_ == nullptr) {
    cuda_ = std::make_unique<transport::window::DriverCuda>(settings.text(Setting::kCudaLibrary),
                                                            std::chrono::nanoseconds(0));
  }
  return cuda_->gpus;
}

transport::window::Gpus* Runtime::loaded_gpus() {
  void* handle =
      dlopen(config().text(Setting::kCudaLibrary).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  dlclose(handle);
  try {
    return &gpus();
  } catch (const Error&) {
    return nullptr;  // a driver without a GPU
  }
}

tune::NumaNodes Runtime::numa_nodes() {
  const Lock lock(numa_mutex_);
  if (!numa_nodes_.has_value()) numa_nodes_ = tune::NumaNodes::read();
  return *numa_nodes_;
}

void Runtime::set_numa_nodes(tune::NumaNodes nodes) {
  const Lock lock(numa_mutex_);
  numa_nodes_ = std::move(nodes);
}

Config& Runtime::loaded() {
  if (config_ == nullptr) {
    auto loaded = std::make_unique<Config>(Config::load());
    apply(*loaded);
    config_ = std::move(loaded);
  }
  return *config_;
}

Config Runtime::config() {
  const Lock lock(config_mutex_);
  return loaded();
}

void Runtime::set(std::string_view name, std::string_view value, std::string_view source) {
  // Under the lock from reading to writing: of two settings made at once neither is lost.
  const Lock lock(config_mutex_);
  Config changed = loaded();
  changed.set(name, value, source);
  apply(changed);
  loaded() = std::move(changed);
}

}  // namespace ropewalk::comm
