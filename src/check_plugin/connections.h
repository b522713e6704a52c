// Connections of the plugin, made as NCCL makes them.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "check_plugin/session.h"

namespace ropewalk::check_plugin {

/// session.start() for rules about GPU memory.
/// @return the GPU of this child: different from the other child's if there are two
/// @throws Skipped when the plugin takes no GPU memory, or there is no GPU
int start_with_gpu(Session& session);

/// A listen comm with its handle, and guard bytes behind it.
class Listening {
 public:
  /// @throws Failed when listen does not succeed, gives no comm or writes beyond the handle
  Listening(Session& session, void* context);
  [[nodiscard]] void* comm() const noexcept { return comm_; }
  [[nodiscard]] std::span<const std::byte> handle() const noexcept {
    return std::span(memory_).first(bytes_);
  }
  void close();

 private:
  Session* session_;
  std::size_t bytes_;
  void* comm_ = nullptr;
  std::array<std::byte, abi::kHandleBytes + 64> memory_;
};

/// NCCL's own copy of a handle: writable, the same at each call of connect.
class Connecting {
 public:
  Connecting(Session& session, void* context, std::span<const std::byte> handle);
  /// One call.
  /// @return whether there is a comm now.
  /// @throws Failed
  bool step();
  /// One call, whose result is the caller's to judge.
  abi::Result call();
  [[nodiscard]] void* comm() const noexcept { return comm_; }
  void use_null_device_handle() noexcept { null_device_handle_ = true; }
  void use_null_config() noexcept { null_config_ = true; }
  [[nodiscard]] const abi::DeviceHandle* device_handle() const noexcept { return device_handle_; }

 private:
  Session* session_;
  void* context_;
  std::array<std::byte, abi::kHandleBytes> handle_{};
  bool null_device_handle_ = false;
  bool null_config_ = false;
  abi::DeviceHandle* device_handle_ = nullptr;
  void* comm_ = nullptr;
};

class Accepting {
 public:
  Accepting(Session& session, void* listen_comm) : session_(&session), listen_comm_(listen_comm) {}
  bool step();
  abi::Result call();
  [[nodiscard]] void* comm() const noexcept { return comm_; }
  void use_null_device_handle() noexcept { null_device_handle_ = true; }
  [[nodiscard]] const abi::DeviceHandle* device_handle() const noexcept { return device_handle_; }

 private:
  Session* session_;
  void* listen_comm_;
  bool null_device_handle_ = false;
  abi::DeviceHandle* device_handle_ = nullptr;
  void* comm_ = nullptr;
};

/// Polls both ends, which are in this process, until both have their comm.
/// @throws Failed
void establish(Session& session, Connecting& connecting, Accepting& accepting);

/// Comms of this process: sends[i] belongs to the other end's receives[i].
struct Comms {
  std::vector<void*> sends;
  std::vector<void*> receives;
};

/// Connects this child with the other: `outgoing` connections from here, `incoming` to here, all
/// polled in turn by this thread. The other child calls it with the numbers exchanged.
Comms connect_processes(Session& session, int outgoing, int incoming);
/// In one direction: the sending child has `count` sends, the receiving one as many receives.
Comms connect_one_way(Session& session, int count = 1);
/// This process with itself, over `context`.
Comms connect_self(Session& session, void* context, int count = 1);
void close_comms(Session& session, const Comms& comms);
/// After the other child has done its part too: only one rule checks a peer that closes right after
/// it has sent.
void meet_and_close(Session& session, const Comms& comms);

}  // namespace ropewalk::check_plugin
