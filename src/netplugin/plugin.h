// The network plugin behind all versions of the interface (tables.cc adapts each).
//
// One object per process. It has a transport (setting NET) from the first init on; it lets go of it
// when the last context is closed and nothing lives any more. Every function may be called by any
// of NCCL's threads; errors are exceptions, "not yet" is nullptr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "core/settings.h"
#include "netplugin/abi/common.h"
#include "netplugin/comm.h"
#include "netplugin/slots.h"
#include "netplugin/wire_handle.h"
#include "transport/provider.h"
#include "transport/transport.h"

namespace ropewalk::netplugin {

/// What NCCL knows this plugin by (NCCL_NET).
inline constexpr const char* kName = "Ropewalk";

/// A device's properties, and texts that live as long as the process.
struct Device {
  transport::DeviceProperties properties;
  std::string name;
};

class Plugin {
 public:
  static Plugin& process() noexcept;

  /// init of versions 4 to 10: once while any communicator lives.
  void start(abi::Logger logger, int version);

  /// init of versions 11 and 12: once per communicator.
  /// @return the context
  void* open_context(abi::Logger logger, std::uint64_t comm_id);
  /// Closes all that was made with the context and is still open.
  void close_context(void* context);

  /// Of the open transport; absent if none is open, or channels are left to NCCL.
  [[nodiscard]] std::optional<transport::ChannelUse> channel_use();
  [[nodiscard]] int num_devices();
  /// @throws Error kInvalidArgument when there is no such device
  [[nodiscard]] const Device& device(int number);

  /// `context` is nullptr in versions that have none.
  void* listen(void* context, int device, HandleSize size, void* handle);
  /// @return nullptr: call again with the same bytes
  void* connect(void* context, int device, HandleSize size, void* handle);
  void* accept(void* listener);

  /// As connect() and accept(), for callers that do not call again (version 4).
  /// @throws Error kTimeout after the setting TIMEOUT
  void* connect_or_wait(int device, HandleSize size, void* handle);
  void* accept_or_wait(void* listener);

  void* register_memory(void* comm, void* data, std::size_t bytes, int type);
  void* register_dma_buf(void* comm, void* data, std::size_t bytes, int type,
                         const transport::DmaBuf& buffer);
  void deregister(void* comm, void* memory);
  /// Never throws Error kInvalidArgument for a connection that is open.
  [[nodiscard]] Comm& comm(void* handle) const;
  [[nodiscard]] Comm& comm_of(void* request) const { return comm_of_request(comms_, request); }
  [[nodiscard]] int max_group();

  void close_comm(void* handle, bool sends);
  void close_listener(void* handle);

  /// Lets go of everything, listeners and attempts to connect too, unless connections are open.
  void release_at_unload();

 private:
  struct Context {
    std::uint64_t comm_id;
  };
  struct Listening {
    std::unique_ptr<transport::Listener> listener;
    int device;
    const void* context;
  };
  struct Connecting {
    std::unique_ptr<transport::Connector> connector;
    const void* context;
  };
  // What the first init makes.
  struct Session {
    Config config;
    std::unique_ptr<transport::Transport> transport;
    std::vector<Device> devices;
  };

  Plugin() = default;
  Session& session();
  void open_session();
  void close_session();
  void release_if_idle();
  void settle_if_unconnected();
  void release();
  void close_all_of(const void* context);
  void* add_comm(Comm::Connection connection, int device, const char* role, const void* context);
  void check_context(const void* context) const;

  Mutex mutex_;
  std::shared_ptr<Session> session_ RW_GUARDED_BY(mutex_);
  std::uint64_t connections_ RW_GUARDED_BY(mutex_) = 0;
  Slots<Context, Kind::kContext> contexts_;
  Slots<Listening, Kind::kListener> listeners_;
  Slots<Connecting, Kind::kConnecting> connecting_;
  Memories memories_;
  Comms comms_;
};

}  // namespace ropewalk::netplugin
