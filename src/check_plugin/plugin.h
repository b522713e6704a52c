// A loaded plugin behind one form of the interface, whatever version it has.
//
// Arguments that a version does not have are left out; sizes are narrowed to its type. Every call
// is noted in the page while it runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check_plugin/page.h"
#include "netplugin/abi/common.h"

namespace ropewalk::check_plugin {

namespace abi = netplugin::abi;

/// What getProperties gave; fields that the version does not have are as newer NCCL fills them in.
struct Properties {
  std::optional<std::string> name;
  std::optional<std::string> pci_path;
  std::uint64_t guid = 0;
  int ptr_support = 0;
  int reg_is_global = 0;
  int force_flush = 0;
  int speed = 0;  ///< Mbit/s
  int port = 0;
  float latency = 0;  ///< us
  int max_comms = 0;
  int max_recvs = 1;
  int net_device_type = 0;
  int net_device_version = 0;
  std::vector<int> members;  ///< empty where the version has none
  int member_count = 0;      ///< as the plugin gave it
  std::size_t max_p2p_bytes = std::size_t{1} << 30;
  std::size_t max_coll_bytes = std::size_t{1} << 29;
  int rail_id = abi::kUndefined;
  int plane_id = abi::kUndefined;
  std::vector<std::string> unwritten;  ///< fields that the plugin left as they were
};

/// One buffer of a receive or a flush.
struct Part {
  void* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
  void* mhandle = nullptr;
};

/// A version's functions.
class Interface;

/// A plugin in this process.
///
/// Threads: as the interface says; the object itself may be used by several. Functions return what
/// the plugin returned. Outputs are passed on unchanged, so that the caller sees exactly what was
/// written.
class Plugin {
 public:
  /// Loads the library as NCCL does, and takes the newest version that it exports, or `version`.
  ///
  /// @throws Error kSystem with the loader's words; kInvalidUsage when no such version is exported
  Plugin(const std::string& file, std::optional<int> version, ProcessPage& page);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  /// All versions that the library exports, newest first.
  [[nodiscard]] const std::vector<int>& versions() const noexcept { return versions_; }
  [[nodiscard]] int version() const noexcept { return version_; }
  [[nodiscard]] const char* name() const noexcept;
  /// Members that must be there and are NULL, as NCCL spells them.
  [[nodiscard]] std::vector<std::string_view> missing_members() const;
  [[nodiscard]] bool has(Call call) const noexcept;
  [[nodiscard]] bool has_dma_buf() const noexcept;

  [[nodiscard]] std::size_t handle_bytes() const noexcept {
    return version_ < 5 ? abi::kShortHandleBytes : abi::kHandleBytes;
  }
  /// connect and accept may say "not yet".
  [[nodiscard]] bool polls_connections() const noexcept { return version_ >= 5; }
  /// init makes a context for each communicator, and finalize ends it.
  [[nodiscard]] bool has_contexts() const noexcept { return version_ >= 11; }
  /// Requests that NCCL may have in flight on a connection: NCCL_NET_MAX_REQUESTS of the net.h that
  /// came with the version. That of version 7 (2.19) says 8, though NCCL itself has 32 from then
  /// on. A grouped receive is one request; it meets as many sends as it has buffers.
  [[nodiscard]] int most_requests() const noexcept { return version_ < 8 ? 8 : abi::kMaxRequests; }
  [[nodiscard]] std::size_t largest_message() const noexcept;

  abi::Result init(void** context, std::uint64_t comm_id, abi::Logger logger);
  abi::Result finalize(void* context);
  abi::Result devices(int* count);
  /// Asks twice, with differently filled memory, so that unwritten fields show.
  abi::Result properties(int device, Properties& properties);
  abi::Result listen(void* context, int device, void* handle, void** listen_comm);
  /// `config`: version 10 only. `device_handle` may be NULL.
  abi::Result connect(void* context, int device, abi::CommConfig* config, void* handle,
                      void** send_comm, abi::DeviceHandle** device_handle);
  abi::Result accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** device_handle);
  abi::Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mhandle);
  abi::Result dereg_mr(void* comm, void* mhandle);
  abi::Result isend(void* comm, const Part& part, void** request);
  abi::Result irecv(void* comm, const std::vector<Part>& parts, void** request);
  abi::Result iflush(void* comm, const std::vector<Part>& parts, void** request);
  abi::Result test(void* request, int* done, int* sizes);
  abi::Result close_send(void* comm);
  abi::Result close_recv(void* comm);
  abi::Result close_listen(void* comm);
  abi::Result irecv_consumed(void* comm, int n, void* request);
  /// @return kInvalidUsage for versions without it
  abi::Result make_virtual_device(int* device, const std::vector<int>& members);
  abi::Result set_net_attributes(void* context, abi::NetAttributes* attributes);

  /// dlclose. Nothing else may be called afterwards.
  /// @return whether the library has left memory
  bool unload();

 private:
  ProcessPage& page_;
  std::string file_;
  void* library_ = nullptr;
  std::vector<int> versions_;
  int version_ = 0;
  std::unique_ptr<Interface> interface_;
};

/// The result as NCCL words it, with its number: "internal error (3)".
std::string describe(abi::Result result);

/// The initial value of a number that the plugin must write.
constexpr int kUnwritten = -0x5a5a5a5b;
/// A number that the plugin was to write, or "not written".
std::string output(int number);

}  // namespace ropewalk::check_plugin
