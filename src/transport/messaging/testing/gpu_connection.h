// For tests of providers that take GPU memory: a connection of a device to itself, whose messages
// lie on the GPUs of the stand-in for CUDA, or in host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/messaging/testing/stand_in.h"
#include "transport/transport.h"
#include "transport/window/device/testing/on_device.h"
#include "transport/window/device/testing/stand_in.h"

namespace ropewalk::transport::messaging::testing {

using window::testing::GuardedBuffer;
using window::testing::Memory;
using window::testing::numbered;
using window::testing::TestGpus;

class GpuConnection {
 public:
  GpuConnection() = default;
  GpuConnection(const GpuConnection&) = delete;
  GpuConnection& operator=(const GpuConnection&) = delete;
  ~GpuConnection() { close(); }

  void connect(std::unique_ptr<Transport> over) {
    close();
    transport_ = std::move(over);
    connect_to_itself(*transport_, sender_, receiver_);
  }
  void close() {
    sender_.reset();
    receiver_.reset();
    transport_.reset();
  }
  /// The GPUs, which are in use from then on.
  TestGpus& gpus() {
    if (!gpus_) {
      gpus_ = std::make_unique<TestGpus>(RW_STAND_IN_CUDA);
      (void)gpus_->gpus.at(0);
      (void)gpus_->gpus.at(1);
    }
    return *gpus_;
  }
  /// Memory of the first GPU, registered with the sender, and of the second, with the receiver.
  std::unique_ptr<GuardedBuffer> source(std::size_t bytes, Memory memory = Memory::kAllocator) {
    return std::make_unique<GuardedBuffer>(gpus().gpus.at(0), bytes, memory, *sender_);
  }
  std::unique_ptr<GuardedBuffer> target(std::size_t bytes, Memory memory = Memory::kAllocator) {
    return std::make_unique<GuardedBuffer>(gpus().gpus.at(1), bytes, memory, *receiver_);
  }
  /// One message, which the receive comes before or after.
  void move(const void* from, Registration* from_memory, void* to, Registration* to_memory,
            std::size_t bytes, bool receive_first) {
    const ReceiveBuffer buffer{to, bytes, 3, to_memory};
    std::unique_ptr<Request> receive;
    std::unique_ptr<Request> send;
    if (receive_first)
      until([&] { return (receive = receiver_->receive({&buffer, 1})) != nullptr; });
    int polls = 0;
    until([&] {
      if (!send) send = sender_->send(from, bytes, 3, from_memory);
      if (!receive && ++polls > 20) receive = receiver_->receive({&buffer, 1});
      const bool sent = send && send->test();
      return receive && receive->test() && sent;
    });
  }
  // Whether what is sent comes.
  bool exchange(GuardedBuffer& from, GuardedBuffer& to, std::size_t bytes,
                bool receive_first = true) {
    const std::vector<char> out = numbered(bytes, ++messages_);
    std::vector<char> in(bytes, 'x');
    from.fill(out.data(), bytes);
    to.fill(in.data(), bytes);
    move(from.data(), from.registration(), to.data(), to.registration(), bytes, receive_first);
    to.fetch(in.data(), bytes);
    return in == out;
  }
  bool exchange_to_gpu(GuardedBuffer& to, std::size_t bytes, bool receive_first = true) {
    const std::vector<char> out = numbered(bytes, ++messages_);
    std::vector<char> in(bytes, 'x');
    to.fill(in.data(), bytes);
    move(out.data(), nullptr, to.data(), to.registration(), bytes, receive_first);
    to.fetch(in.data(), bytes);
    return in == out;
  }
  bool exchange_from_gpu(GuardedBuffer& from, std::size_t bytes, bool receive_first = true) {
    const std::vector<char> out = numbered(bytes, ++messages_);
    std::vector<char> in(bytes, 'x');
    from.fill(out.data(), bytes);
    move(from.data(), from.registration(), in.data(), nullptr, bytes, receive_first);
    return in == out;
  }
  bool exchange_host(std::size_t bytes, bool receive_first = true) {
    const std::vector<char> out = numbered(bytes, ++messages_);
    std::vector<char> in(bytes, 'x');
    move(out.data(), nullptr, in.data(), nullptr, bytes, receive_first);
    return in == out;
  }
  [[nodiscard]] unsigned kinds() const { return transport_->properties(0).memory_kinds; }

 private:
  std::size_t messages_ = 0;

 protected:
  std::unique_ptr<TestGpus> gpus_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<SendConnection> sender_;
  std::unique_ptr<ReceiveConnection> receiver_;
};

}  // namespace ropewalk::transport::messaging::testing
