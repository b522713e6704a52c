#include "netplugin/plugin.h"

#include <ctime>
#include <new>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "netplugin/report.h"
#include "netplugin/tuning.h"
#include "transport/registry.h"

namespace ropewalk::netplugin {
namespace {

using Clock = std::chrono::steady_clock;

template <typename Step>
void* wait_for(Step step, const Config& config, const char* what) {
  const auto limit = config.duration(Setting::kTimeout);
  const Clock::time_point begin = Clock::now();
  while (true) {
    if (void* made = step()) return made;
    if (limit.count() > 0 && Clock::now() - begin > limit) {
      throw Error(Errc::kTimeout, "{} for {} s (setting TIMEOUT)", what,
                  std::chrono::duration<double>(limit).count());
    }
    constexpr timespec kPause = {0, 20'000};
    nanosleep(&kPause, nullptr);
  }
}

}  // namespace

Plugin& Plugin::process() noexcept {
  // Never destroyed: NCCL's threads may still be at work while the process ends. What can be given
  // back when the library is unloaded, release_if_idle() gives back.
  alignas(Plugin) static std::byte memory[sizeof(Plugin)];
  static Plugin* const plugin = new (memory) Plugin;
  return *plugin;
}

// ---- contexts ------------------------------------------------------------------------------

void Plugin::open_session() {
  const Lock lock(mutex_);
  if (session_) return;
  auto made = std::make_shared<Session>();
  made->config = Config::load();
  const transport::Provider& chosen = transport::chosen_provider(made->config);
  made->transport = transport::make_transport(chosen.name, made->config);
  bool gpu = false;
  bool without_pci_path = false;  // GPU memory is taken by a device that is nowhere on PCIe
  std::string names;
  for (int i = 0; i < made->transport->num_devices(); ++i) {
    Device device{made->transport->properties(i), {}};
    device.name = device.properties.name;
    if ((device.properties.memory_kinds & static_cast<unsigned>(transport::MemoryKind::kCuda)) !=
        0) {
      gpu = true;
      without_pci_path = without_pci_path || device.properties.pci_path.empty();
    }
    names += (i == 0 ? "" : ", ") + device.name;
    made->devices.push_back(std::move(device));
  }
  log::info(log::kInit, "{} over {}{}", made->transport->name(),
            names.empty() ? "no device" : names, gpu ? ", also for GPU memory" : "");
  set_variables(chosen.channel_use, without_pci_path);
  session_ = std::move(made);
}

void Plugin::close_session() {
  std::shared_ptr<Session> closed;
  const Lock lock(mutex_);
  closed = std::move(session_);
}

Plugin::Session& Plugin::session() {
  const Lock lock(mutex_);
  if (!session_) throw Error(Errc::kInvalidUsage, "init has not been called");
  return *session_;
}

void Plugin::start(abi::Logger logger, int version) {
  log_to(logger);
  set_remote_error_known(version >= 6);
  release_if_idle();  // settings may have changed since
  open_session();
}

void* Plugin::open_context(abi::Logger logger, std::uint64_t comm_id) {
  log_to(logger);
  set_remote_error_known(true);
  open_session();
  return contexts_.add(std::make_unique<Context>(Context{comm_id}));
}

void Plugin::close_context(void* context) {
  if (context == nullptr) return;
  if (contexts_.remove(context) == nullptr) {
    throw Error(Errc::kInvalidArgument, "{} is not an open context", context);
  }
  close_all_of(context);
  release_if_idle();
}

void Plugin::close_all_of(const void* context) {
  const auto same = [&](const auto& object) { return object.context == context; };
  const std::size_t left =
      comms_.remove_if([&](const Comm& comm) { return comm.context() == context; }) +
      connecting_.remove_if(same) + listeners_.remove_if(same);
  if (left > 0) log::info(log::kNet, "{} ends of connections were left open: closed", left);
}

void Plugin::release_if_idle() {
  // In versions without contexts what an aborted set-up left behind is not known to be so.
  if (contexts_.live() + comms_.live() + listeners_.live() + connecting_.live() > 0) return;
  release();
}

// Versions 4 to 10 have no finalize: the last close is the last call, unless there is another init.
void Plugin::settle_if_unconnected() {
  if (comms_.live() + listeners_.live() + connecting_.live() > 0) return;
  std::shared_ptr<Session> open;
  {
    const Lock lock(mutex_);
    open = session_;
  }
  if (open != nullptr) open->transport->settle();
}

void Plugin::release_at_unload() {
  // With a connection, this is the end of a process whose threads may still be at work.
  if (contexts_.live() + comms_.live() > 0) return;
  release();
}

void Plugin::release() {
  comms_.clear();
  memories_.clear();
  connecting_.clear();
  listeners_.clear();
  contexts_.clear();
  close_session();  // after all that was made by its transport
}

void Plugin::check_context(const void* context) const {
  if (context != nullptr && contexts_.find(context) == nullptr) {
    throw Error(Errc::kInvalidArgument, "{} is not an open context", context);
  }
}

std::optional<transport::ChannelUse> Plugin::channel_use() {
  const Lock lock(mutex_);
  return session_ ? transport::chosen_provider(session_->config).channel_use : std::nullopt;
}

// ---- devices -------------------------------------------------------------------------------

int Plugin::num_devices() { return static_cast<int>(session().devices.size()); }

const Device& Plugin::device(int number) {
  const Session& open = session();
  if (number < 0 || static_cast<std::size_t>(number) >= open.devices.size()) {
    throw Error(Errc::kInvalidArgument, "device {} of {}", number, open.devices.size());
  }
  return open.devices[static_cast<std::size_t>(number)];
}

int Plugin::max_group() {
  const Session& open = session();
  return open.devices.empty() ? 1 : open.devices.front().properties.max_grouped_receives;
}

// ---- connections ---------------------------------------------------------------------------

void* Plugin::listen(void* context, int number, HandleSize size, void* handle) {
  check_context(context);
  (void)device(number);
  auto made =
      std::make_unique<Listening>(Listening{session().transport->listen(number), number, context});
  write_handle(made->listener->handle(), size, handle);
  return listeners_.add(std::move(made));
}

void* Plugin::add_comm(Comm::Connection connection, int number, const char* role,
                       const void* context) {
  std::uint64_t count = 0;
  {
    const Lock lock(mutex_);
    count = ++connections_;
  }
  auto made = std::make_unique<Comm>(
      std::move(connection), memories_,
      fmt::format("connection {} ({}, {})", count, role, device(number).name), context);
  Comm* const comm = made.get();
  void* const added = comms_.add(std::move(made));
  comm->set_handle(added);  // before anybody else knows of it
  return added;
}

void* Plugin::connect(void* context, int number, HandleSize size, void* handle) {
  check_context(context);
  (void)device(number);
  const transport::Handle target = read_handle(size, handle);
  void* attempt = size == HandleSize::kFull ? read_attempt(handle) : nullptr;
  if (attempt == nullptr) {
    auto connector = session().transport->connect(number, target);
    if (auto made = connector->poll()) {
      return add_comm(std::move(made), number, "sending", context);
    }
    attempt =
        connecting_.add(std::make_unique<Connecting>(Connecting{std::move(connector), context}));
    if (size == HandleSize::kFull) write_attempt(handle, attempt);
    return nullptr;
  }
  Connecting* const under_way = connecting_.find(attempt);
  if (under_way == nullptr) {
    throw Error(Errc::kInvalidArgument, "the handle names an attempt to connect that is not there");
  }
  std::unique_ptr<transport::SendConnection> made;
  try {
    made = under_way->connector->poll();
    if (!made) return nullptr;
  } catch (const Error&) {
    connecting_.remove(attempt);
    write_attempt(handle, nullptr);
    throw;
  }
  connecting_.remove(attempt);
  write_attempt(handle, nullptr);
  return add_comm(std::move(made), number, "sending", context);
}

void* Plugin::accept(void* handle) {
  Listening* const listening = listeners_.find(handle);
  if (listening == nullptr) {
    throw Error(Errc::kInvalidArgument, "{} is not an open listener", handle);
  }
  auto made = listening->listener->accept();
  if (!made) return nullptr;
  return add_comm(std::move(made), listening->device, "receiving", listening->context);
}

void* Plugin::connect_or_wait(int number, HandleSize size, void* handle) {
  // A full handle's bytes, so that an attempt that takes time is found again.
  (void)device(number);
  const auto connector = session().transport->connect(number, read_handle(size, handle));
  std::unique_ptr<transport::SendConnection> made;
  return wait_for(
      [&]() -> void* {
        made = connector->poll();
        return made ? add_comm(std::move(made), number, "sending", nullptr) : nullptr;
      },
      session().config, "no connection");
}

void* Plugin::accept_or_wait(void* listener) {
  return wait_for([&] { return accept(listener); }, session().config, "nobody connected");
}

Comm& Plugin::comm(void* handle) const {
  Comm* const found = comms_.find(handle);
  if (found == nullptr) throw Error(Errc::kInvalidArgument, "{} is not an open connection", handle);
  return *found;
}

void* Plugin::register_memory(void* handle, void* data, std::size_t bytes, int type) {
  Comm& owner = comm(handle);
  switch (type) {
    case abi::kHostPointer: return owner.register_memory(data, bytes, transport::MemoryKind::kHost);
    case abi::kCudaPointer: return owner.register_memory(data, bytes, transport::MemoryKind::kCuda);
    default:
      throw Error(Errc::kInvalidArgument, "{}: memory of kind {}; known are 1 (host) and 2 (GPU)",
                  owner.name(), type);
  }
}

void* Plugin::register_dma_buf(void* handle, void* data, std::size_t bytes, int type,
                               const transport::DmaBuf& buffer) {
  Comm& owner = comm(handle);
  if (type != abi::kCudaPointer && type != abi::kDmaBufPointer) {
    throw Error(Errc::kInvalidArgument,
                "{}: memory of kind {} by a dma-buf descriptor, which is of GPU memory (2)",
                owner.name(), type);
  }
  if (buffer.descriptor < 0) {
    throw Error(Errc::kInvalidArgument, "{}: {} is no descriptor of a dma-buf", owner.name(),
                buffer.descriptor);
  }
  return owner.register_dma_buf(data, bytes, buffer);
}

void Plugin::deregister(void* handle, void* memory) {
  if (memory == nullptr) return;
  comm(handle).deregister(memory);
}

void Plugin::close_comm(void* handle, bool sends) {
  if (handle == nullptr) return;
  const Comm& closing = comm(handle);
  if (closing.sends() != sends) {
    throw Error(Errc::kInvalidArgument, "{} is not the {} end", closing.name(),
                sends ? "sending" : "receiving");
  }
  comms_.remove(handle);
  settle_if_unconnected();
}

void Plugin::close_listener(void* handle) {
  if (handle == nullptr) return;
  if (listeners_.remove(handle) == nullptr) {
    throw Error(Errc::kInvalidArgument, "{} is not an open listener", handle);
  }
  settle_if_unconnected();
}

}  // namespace ropewalk::netplugin
