// Rules about listen, connect and accept.
#include <algorithm>
#include <chrono>
#include <vector>

#include "check_plugin/connections.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"

namespace ropewalk::check_plugin {
namespace {

// How often "not yet" is asked for; more than any protocol has stages.
constexpr int kPolls = 200;

void check_listen(Session& session) {
  session.start();
  // That it can be closed is for another rule.
  const Listening listening(session, session.context());
}

void check_connect(Session& session) {
  session.start();
  connect_one_way(session);
  session.meet();
}

void check_self_connection(Session& session) {
  session.start();
  Listening listening(session, session.context());
  Connecting connecting(session, session.context(), listening.handle());
  Accepting accepting(session, listening.comm());
  establish(session, connecting, accepting);
  // The bootstrap over a plugin keeps the listen comm to the end.
  send_to_self(session, connecting.comm(), accepting.comm(), 1);
  close_comms(session, {{connecting.comm()}, {accepting.comm()}});
  listening.close();
}

void check_not_yet(Session& session) {
  session.start();
  if (!session.plugin().polls_connections()) {
    throw Skipped{"polled connections: version 5 and later"};
  }
  // accept before anyone connects.
  Listening listening(session, session.context());
  Accepting accepting(session, listening.comm());
  for (int i = 0; i < kPolls; ++i) {
    if (accepting.step()) {
      throw Failed{"success with NULL from accept while nobody connects", "a comm"};
    }
  }
  // connect while nobody accepts; it may come to its end or not, but each call returns.
  Connecting connecting(session, session.context(), listening.handle());
  for (int i = 0; i < kPolls && connecting.comm() == nullptr; ++i) connecting.step();
  session.wait("accept and connect come to their end", [&] {
    const bool connected = connecting.comm() != nullptr || connecting.step();
    const bool accepted = accepting.comm() != nullptr || accepting.step();
    return connected && accepted;
  });
}

void check_connect_first(Session& session) {
  session.start();
  if (session.plugin().version() > 6) {
    throw Skipped{"a version that NCCL up to 2.16 loads: 4 to 6"};
  }
  Listening listening(session, session.context());
  Connecting connecting(session, session.context(), listening.handle());
  session.wait("connect comes to its end before the first accept",
               [&] { return connecting.step(); });
  Accepting accepting(session, listening.comm());
  session.wait("accept comes to its end", [&] { return accepting.step(); });
}

void check_listen_closed(Session& session) {
  session.start();
  Listening listening(session, session.context());
  Connecting connecting(session, session.context(), listening.handle());
  Accepting accepting(session, listening.comm());
  establish(session, connecting, accepting);
  listening.close();
  send_to_self(session, connecting.comm(), accepting.comm(), 2);
}

void check_listen_unused(Session& session) {
  session.start();
  for (int i = 0; i < 8; ++i) {
    Listening unused(session, session.context());
    unused.close();
  }
  close_comms(session, connect_self(session, session.context()));
}

void check_listen_again(Session& session) {
  session.start();
  // Several at once, whose handles differ, and each leads to its own.
  constexpr std::size_t kCount = 16;
  std::vector<Listening> listening;
  for (std::size_t i = 0; i < kCount; ++i) listening.emplace_back(session, session.context());
  for (std::size_t i = 0; i < kCount; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto a = listening[i].handle();
      const auto b = listening[j].handle();
      if (std::equal(a.begin(), a.end(), b.begin())) {
        throw Failed{"another handle for each listen", fmt::format("{} and {} are equal", j, i)};
      }
    }
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    Connecting connecting(session, session.context(), listening[i].handle());
    Accepting accepting(session, listening[i].comm());
    establish(session, connecting, accepting);
    listening[i].close();
    send_to_self(session, connecting.comm(), accepting.comm(), i);
    close_comms(session, {{connecting.comm()}, {accepting.comm()}});
  }
}

void check_second_peer(Session& session) {
  session.start();
  Listening listening(session, session.context());
  Connecting first(session, session.context(), listening.handle());
  Accepting accepting(session, listening.comm());
  establish(session, first, accepting);
  // A second connection to the same handle: served, refused or never finished.
  Connecting second(session, session.context(), listening.handle());
  Accepting again(session, listening.comm());
  abi::Result connected = abi::kSuccess;
  abi::Result accepted = abi::kSuccess;
  for (int i = 0; i < (session.plugin().polls_connections() ? kPolls : 0); ++i) {
    if (connected == abi::kSuccess && second.comm() == nullptr) connected = second.call();
    if (accepted == abi::kSuccess && again.comm() == nullptr) accepted = again.call();
  }
  if (second.comm() != nullptr && again.comm() != nullptr) {
    send_to_self(session, second.comm(), again.comm(), 3);
  }
  send_to_self(session, first.comm(), accepting.comm(), 4);
}

void check_null_device_handle(Session& session) {
  session.start();
  if (session.plugin().version() < 7) throw Skipped{"device handles: version 7 and later"};
  for (const bool null : {false, true}) {
    Listening listening(session, session.context());
    Connecting connecting(session, session.context(), listening.handle());
    Accepting accepting(session, listening.comm());
    if (null) {
      connecting.use_null_device_handle();
      accepting.use_null_device_handle();
    }
    establish(session, connecting, accepting);
    if (session.properties().net_device_type == 0 &&
        (connecting.device_handle() != nullptr || accepting.device_handle() != nullptr)) {
      throw Failed{"no device handle from a HOST device", "one that is not NULL"};
    }
  }
}

void check_null_config(Session& session) {
  session.start();
  if (session.plugin().version() != 10) throw Skipped{"connect with a config: version 10"};
  Listening listening(session, session.context());
  Connecting connecting(session, session.context(), listening.handle());
  connecting.use_null_config();
  Accepting accepting(session, listening.comm());
  establish(session, connecting, accepting);
}

// As many as NCCL opens between two processes, all at once, in both directions.
void check_many_connections(Session& session) {
  session.start();
  constexpr int kCount = 32;
  const Comms comms = connect_processes(session, kCount, kCount);
  for (int i = 0; i < kCount; ++i) {
    const auto number = static_cast<std::size_t>(i);
    const std::vector<Message> messages = {{0, 1000, i}};
    Region region(1000);
    Region back(1000);
    void* send_handle = region.register_on(session, comms.sends[number]);
    void* receive_handle = back.register_on(session, comms.receives[number]);
    region.fill(0, 1000, number);
    Sends sends(session, comms.sends[number], region, send_handle, messages);
    Receives receives(session, comms.receives[number], back, receive_handle,
                      single_slots(messages));
    run(session, fmt::format("a message over connection {} completes", i), sends, receives);
    if (const auto wrong = back.difference(0, 1000, number)) {
      throw Failed{fmt::format("the message of connection {} on that connection", i), *wrong};
    }
  }
  meet_and_close(session, comms);
}

constexpr std::string_view kSetup =
    "src/transport/net.cc: sendProxyConnect, recvProxySetup, recvProxyConnect";

constexpr Rule kConnectingRules[] = {
    {"listen", "listen gives a comm, and a handle that fits",
     "A handle has 128 bytes, 64 for version 4; NCCL sends it to the peer as it is.", kSetup,
     "devices", 1, 1, check_listen},
    {"connect", "Two processes connect, each polling",
     "NCCL calls connect and accept until they give a comm, from the thread that serves all "
     "connections.",
     kSetup, "listen", 2, 1, check_connect},
    {"self-connection", "A process can connect to itself",
     "NCCL's probe for GPUDirect and the registration of user buffers (2.20 to 2.23) do.",
     "src/init.cc: ncclGpuGdrSupport; src/register/register.cc", "connect", 1, 1,
     check_self_connection},
    {"not-yet", "connect and accept say \"not yet\" at once",
     "Success with a NULL comm lets the thread go on with other connections; one that waits for "
     "its "
     "peer stops them all.",
     kSetup, "connect", 1, 1, check_not_yet},
    {"connect-first", "connect ends without the peer's accept",
     "Up to 2.16 a rank makes all its sends before it accepts: a ring would wait for itself.",
     "src/transport.cc: ncclTransportP2pSetup", "connect", 1, 1, check_connect_first},
    {"listen-closed", "A connection outlives its listen comm",
     "NCCL closes the listen comm as soon as accept gave a comm.", kSetup, "self-connection", 1, 1,
     check_listen_closed},
    {"listen-unused", "A listen comm that nobody used can be closed",
     "With shared connections all but one listen comm of a pair are closed unused.", kSetup,
     "self-connection", 1, 1, check_listen_unused},
    {"listen-again", "A device listens many times, at once and again",
     "Each connection has a listen of its own on the same device.", kSetup, "self-connection", 1, 1,
     check_listen_again},
    {"second-peer", "A second connection to a handle does not harm the first",
     "A retried or strange peer must not break a running connection.", kSetup, "self-connection", 1,
     1, check_second_peer},
    {"null-device-handle", "The device handle's pointer may be NULL, and stays NULL",
     "Some callers pass NULL; a handle that is not NULL switches NCCL to device offload.",
     "src/init.cc: ncclGpuGdrSupport; src/transport/net.cc", "self-connection", 1, 1,
     check_null_device_handle},
    {"null-config", "Version 10's connect takes a NULL config",
     "The GPUDirect probe of 2.26 and 2.27 passes one.", "src/init.cc: ncclGpuGdrSupport",
     "self-connection", 1, 1, check_null_config},
    {"many-connections", "Many connections are made at once by one thread",
     "From 2.17 NCCL polls all pending connections in turn.", kSetup, "connect", 2, 2,
     check_many_connections},
};

}  // namespace

std::span<const Rule> connecting_rules() { return kConnectingRules; }

}  // namespace ropewalk::check_plugin
