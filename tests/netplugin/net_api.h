// A network plugin as NCCL loads it, any version of the interface in one form.
//
// Calls have the arguments and results of version 12; those that a version lacks are left out.
// Results that NCCL leaves uninitialised are filled with garbage before each call.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "netplugin/abi/common.h"
#include "netplugin/abi/properties.h"
#include "netplugin/abi/tables.h"

namespace ropewalk::netplugin::testing {

/// What all versions state about a device.
struct Stated {
  std::string name;
  const char* pci_path = nullptr;
  std::uint64_t guid = 0;
  int ptr_support = 0;
  int speed = 0;
  int port = 0;
  int max_comms = 0;
  int max_recvs = 1;
  std::size_t max_p2p_bytes = 1;
};

struct Message {
  void* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
  void* memory = nullptr;
};

class NetApi {
 public:
  virtual ~NetApi() = default;
  [[nodiscard]] virtual int version() const = 0;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::size_t handle_bytes() const = 0;
  virtual int init(abi::Logger logger, void** context) = 0;
  virtual int finalize(void* context) = 0;
  virtual int devices(int* count) = 0;
  virtual int properties(int device, Stated* stated) = 0;
  virtual int listen(void* context, int device, void* handle, void** listener) = 0;
  virtual int connect(void* context, int device, void* handle, void** comm) = 0;
  virtual int accept(void* listener, void** comm) = 0;
  virtual int register_memory(void* comm, void* data, std::size_t bytes, int type,
                              void** memory) = 0;
  virtual int deregister(void* comm, void* memory) = 0;
  virtual int isend(void* comm, const Message& message, void** request) = 0;
  virtual int irecv(void* comm, std::vector<Message> messages, void** request) = 0;
  virtual int iflush(void* comm, const Message& message, void** request) = 0;
  virtual int test(void* request, int* done, int* sizes) = 0;
  virtual int close_send(void* comm) = 0;
  virtual int close_recv(void* comm) = 0;
  virtual int close_listen(void* listener) = 0;
};

/// A loaded plugin file. Unloads at the end.
class Library {
 public:
  explicit Library(const char* path);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  /// @throws std::runtime_error when it does not export that version
  [[nodiscard]] std::unique_ptr<NetApi> api(int version) const;

 private:
  void* library_;
};

/// Lines that went to logger(), by any thread, since the last call.
std::vector<std::string> take_lines();
/// A logger in NCCL's form that keeps warnings and shows nothing.
void logger(int level, unsigned long subsystems, const char* file, int line, const char* format,
            ...) __attribute__((format(printf, 5, 6)));

}  // namespace ropewalk::netplugin::testing
