#include "transports/bare_psm2.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>

#include "core/error.h"
#include "transport/messaging/psm2/library.h"

namespace ropewalk {
namespace {

namespace abi = transport::psm2::abi;

constexpr abi::Tag kTag{{7, 0, 0}};
constexpr abi::Tag kMask{{0xffffffff, 0xffffffff, 0xffffffff}};
constexpr std::int64_t kConnectNs = 10'000'000'000;

}  // namespace

struct BarePsm2::State {
  std::shared_ptr<const transport::psm2::Library> library;
  abi::Endpoint* endpoint = nullptr;
  abi::Queue* queue = nullptr;
  abi::Address* peer = nullptr;
  void* out = nullptr;
  void* in = nullptr;

  void check(abi::Error error, const char* call) const {
    if (error != abi::kOk) throw Error(Errc::kSystem, "{}: {}", call, library->words(error));
  }
  abi::QueueRequest* send(std::size_t bytes) {
    abi::QueueRequest* request = nullptr;
    check(library->start_send(queue, peer, 0, &kTag, out, static_cast<std::uint32_t>(bytes),
                              nullptr, &request),
          "psm2_mq_isend2");
    return request;
  }
  abi::QueueRequest* receive(std::size_t bytes) {
    abi::QueueRequest* request = nullptr;
    check(library->start_receive(queue, nullptr, &kTag, &kMask, 0, in,
                                 static_cast<std::uint32_t>(bytes), nullptr, &request),
          "psm2_mq_irecv2");
    return request;
  }
  void wait(abi::QueueRequest* request) {
    abi::Status status;
    while (library->test(&request, &status) == abi::kIncomplete) library->poll(endpoint);
  }
  template <typename Start>
  void stream(std::size_t messages, std::size_t in_flight, Start start) {
    std::deque<abi::QueueRequest*> flying;
    for (std::size_t i = 0; i < messages; ++i) {
      if (flying.size() >= in_flight) {
        wait(flying.front());
        flying.pop_front();
      }
      flying.push_back(start());
    }
    for (abi::QueueRequest* const each : flying) wait(each);
    // The sender of a long message learns of its end by a poll that follows the receiver's.
    library->poll(endpoint);
  }
};

BarePsm2::BarePsm2(int socket, void* out, void* in) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.out = out;
  s.in = in;
  auto found = transport::psm2::Library::open("libpsm2.so.2", true);
  if (!found.library) throw Error(Errc::kSystem, "{}", found.why_not);
  s.library = std::move(found.library);
  abi::OpenOptions options{};
  s.library->open_defaults(&options);
  options.affinity = 0;
  // Differs from the transport's by its first bits, which are the endpoint's id.
  abi::JobKey key{0x5a, 0xa5, 'b', 'a', 'r', 'e'};
  abi::EndpointId own = 0;
  abi::EndpointId theirs = 0;
  s.check(s.library->endpoint_open(key.data(), &options, &s.endpoint, &own), "psm2_ep_open");
  s.check(s.library->queue_init(s.endpoint, ~std::uint64_t{0}, nullptr, 0, &s.queue),
          "psm2_mq_init");
  if (write(socket, &own, sizeof own) != sizeof own ||
      recv(socket, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs) {
    throw Error(Errc::kPeerLost, "{}", "the other process is gone");
  }
  abi::Error each = abi::kOk;
  s.check(s.library->endpoint_connect(s.endpoint, 1, &theirs, nullptr, &each, &s.peer, kConnectNs),
          "psm2_ep_connect");
  // Until the peer has connected, too.
  char ready = 'r';
  if (write(socket, &ready, 1) != 1)
    throw Error(Errc::kPeerLost, "{}", "the other process is gone");
  while (recv(socket, &ready, 1, MSG_DONTWAIT) != 1) s.library->poll(s.endpoint);
}

// The endpoint lives until the process ends, as the transport's.
BarePsm2::~BarePsm2() = default;

void BarePsm2::send_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) {
  state_->stream(messages, in_flight, [&] { return state_->send(bytes); });
}

void BarePsm2::receive_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) {
  state_->stream(messages, in_flight, [&] { return state_->receive(bytes); });
}

void BarePsm2::ping_pong(std::size_t bytes, int times, bool first) {
  State& s = *state_;
  abi::QueueRequest* next = s.receive(bytes);
  for (int i = 0; i < times; ++i) {
    if (first) s.wait(s.send(bytes));
    s.wait(next);
    if (i + 1 < times) next = s.receive(bytes);
    if (!first) s.wait(s.send(bytes));
  }
  s.library->poll(s.endpoint);
}

}  // namespace ropewalk
