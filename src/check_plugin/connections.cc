#include "check_plugin/connections.h"

#include <algorithm>

#include "check_plugin/gpu.h"

namespace ropewalk::check_plugin {
namespace {

constexpr std::byte kUncleared{0xa5};

// Polls all until each has its comm. Before version 5 a call of connect does all of it, and accept
// may wait: so connections are made first, as NCCL did.
void establish_all(Session& session, std::vector<Connecting>& connecting,
                   std::vector<Accepting>& accepting) {
  const auto all = [](auto& pending) {
    bool done = true;
    for (auto& each : pending) {
      if (each.comm() == nullptr && !each.step()) done = false;
    }
    return done;
  };
  session.wait("connect and accept come to their end", [&] {
    const bool connected = all(connecting);
    return all(accepting) && connected;
  });
}

Comms finish(const std::vector<Connecting>& connecting, const std::vector<Accepting>& accepting,
             std::vector<Listening>& listening) {
  for (Listening& each : listening) each.close();
  Comms comms;
  for (const Connecting& each : connecting) comms.sends.push_back(each.comm());
  for (const Accepting& each : accepting) comms.receives.push_back(each.comm());
  return comms;
}

}  // namespace

int start_with_gpu(Session& session) {
  session.start();
  if ((session.properties().ptr_support & abi::kCudaPointer) == 0) {
    throw Skipped{"GPU memory: ptrSupport lacks CUDA"};
  }
  if (!Gpus::why_none().empty()) throw Skipped{Gpus::why_none()};
  const int gpu = session.sender() ? 0 : std::min(1, Gpus::count() - 1);
  Gpus::use(gpu);
  return gpu;
}

Listening::Listening(Session& session, void* context)
    : session_(&session), bytes_(session.plugin().handle_bytes()) {
  memory_.fill(kUncleared);
  session.expect(session.plugin().listen(context, session.device(), memory_.data(), &comm_),
                 Call::kListen);
  if (comm_ == nullptr) throw Failed{"a listen comm from listen", "success with NULL"};
  const auto written = std::find_if(memory_.begin() + static_cast<std::ptrdiff_t>(bytes_),
                                    memory_.end(), [](std::byte b) { return b != kUncleared; });
  if (written != memory_.end()) {
    throw Failed{fmt::format("a handle of at most {} bytes", bytes_),
                 fmt::format("listen wrote byte {}", written - memory_.begin())};
  }
}

void Listening::close() {
  session_->expect(session_->plugin().close_listen(comm_), Call::kCloseListen);
  comm_ = nullptr;
}

Connecting::Connecting(Session& session, void* context, std::span<const std::byte> handle)
    : session_(&session), context_(context) {
  std::copy(handle.begin(), handle.end(), handle_.begin());
}

abi::Result Connecting::call() {
  abi::CommConfig config{abi::kUndefined};
  return session_->plugin().connect(context_, session_->device(), null_config_ ? nullptr : &config,
                                    handle_.data(), &comm_,
                                    null_device_handle_ ? nullptr : &device_handle_);
}

bool Connecting::step() {
  session_->expect(call(), Call::kConnect);
  if (comm_ == nullptr && !session_->plugin().polls_connections()) {
    throw Failed{"a comm from version 4's connect", "success with NULL"};
  }
  return comm_ != nullptr;
}

abi::Result Accepting::call() {
  return session_->plugin().accept(listen_comm_, &comm_,
                                   null_device_handle_ ? nullptr : &device_handle_);
}

bool Accepting::step() {
  session_->expect(call(), Call::kAccept);
  if (comm_ == nullptr && !session_->plugin().polls_connections()) {
    throw Failed{"a comm from version 4's accept", "success with NULL"};
  }
  return comm_ != nullptr;
}

void establish(Session& session, Connecting& connecting, Accepting& accepting) {
  session.wait("connect and accept come to their end", [&] {
    const bool connected = connecting.comm() != nullptr || connecting.step();
    const bool accepted = accepting.comm() != nullptr || accepting.step();
    return connected && accepted;
  });
}

Comms connect_processes(Session& session, int outgoing, int incoming) {
  std::vector<Listening> listening;
  listening.reserve(static_cast<std::size_t>(incoming));
  std::vector<std::byte> handles;
  for (int i = 0; i < incoming; ++i) {
    const Listening& added = listening.emplace_back(session, session.context());
    handles.insert(handles.end(), added.handle().begin(), added.handle().end());
  }
  session.tell(handles);
  session.meet();
  const std::size_t bytes = session.plugin().handle_bytes();
  const auto count = static_cast<std::size_t>(outgoing);
  const std::span<const std::byte> heard = session.heard(count * bytes);
  std::vector<Connecting> connecting;
  for (std::size_t i = 0; i < count; ++i) {
    connecting.emplace_back(session, session.context(), heard.subspan(i * bytes, bytes));
  }
  std::vector<Accepting> accepting;
  accepting.reserve(listening.size());
  for (const Listening& each : listening) accepting.emplace_back(session, each.comm());
  establish_all(session, connecting, accepting);
  Comms comms = finish(connecting, accepting, listening);
  session.meet();  // the mail may be written again
  return comms;
}

Comms connect_one_way(Session& session, int count) {
  return session.sender() ? connect_processes(session, count, 0)
                          : connect_processes(session, 0, count);
}

Comms connect_self(Session& session, void* context, int count) {
  std::vector<Listening> listening;
  std::vector<Connecting> connecting;
  std::vector<Accepting> accepting;
  for (int i = 0; i < count; ++i) {
    const Listening& added = listening.emplace_back(session, context);
    connecting.emplace_back(session, context, added.handle());
    accepting.emplace_back(session, added.comm());
  }
  establish_all(session, connecting, accepting);
  return finish(connecting, accepting, listening);
}

void close_comms(Session& session, const Comms& comms) {
  for (void* comm : comms.sends) {
    session.expect(session.plugin().close_send(comm), Call::kCloseSend);
  }
  for (void* comm : comms.receives) {
    session.expect(session.plugin().close_recv(comm), Call::kCloseRecv);
  }
}

void meet_and_close(Session& session, const Comms& comms) {
  session.meet();
  close_comms(session, comms);
}

}  // namespace ropewalk::check_plugin
