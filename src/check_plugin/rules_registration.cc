// Rules about memory registration.
#include <atomic>
#include <vector>

#include "check_plugin/connections.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"

namespace ropewalk::check_plugin {
namespace {

void check_register(Session& session) {
  session.start();
  const Comms comms = connect_self(session, session.context());
  Region region(std::size_t{8} << 20);
  // Odd addresses and sizes, as users' buffers have.
  const std::vector<std::pair<std::size_t, std::size_t>> ranges = {{0, 1},
                                                                   {1, 1},
                                                                   {3, 7},
                                                                   {4095, 2},
                                                                   {13, 4096},
                                                                   {1, 65'537},
                                                                   {64, std::size_t{5} << 20},
                                                                   {0, region.bytes()}};
  for (void* comm : {comms.sends[0], comms.receives[0]}) {
    std::vector<void*> mhandles;
    for (const auto& [offset, bytes] : ranges) {
      void*& mhandle = mhandles.emplace_back();
      const abi::Result result =
          session.plugin().reg_mr(comm, region.at(offset), bytes, abi::kHostPointer, &mhandle);
      if (result != abi::kSuccess) {
        throw Failed{fmt::format("success from regMr of {} bytes at offset {}", bytes, offset),
                     describe(result)};
      }
    }
    for (void* mhandle : mhandles) {
      session.expect(session.plugin().dereg_mr(comm, mhandle), Call::kDeregMr);
    }
  }
  close_comms(session, comms);
}

// The shared pool is registered once for each connection, and for several on the same comm.
void check_register_twice(Session& session) {
  session.start();
  const Comms comms = connect_self(session, session.context());
  constexpr std::size_t kBytes = 100'000;
  Region from(kBytes);
  Region to(kBytes);
  from.fill(0, kBytes, 1);
  void* from_first = from.register_on(session, comms.sends[0]);
  void* from_second = from.register_on(session, comms.sends[0]);
  void* to_first = to.register_on(session, comms.receives[0]);
  void* to_second = to.register_on(session, comms.receives[0]);
  session.expect(session.plugin().dereg_mr(comms.sends[0], from_first), Call::kDeregMr);
  session.expect(session.plugin().dereg_mr(comms.receives[0], to_first), Call::kDeregMr);
  const std::vector<Message> messages = {{0, kBytes, 0}};
  Sends sends(session, comms.sends[0], from, from_second, messages);
  Receives receives(session, comms.receives[0], to, to_second, single_slots(messages));
  run(session, "a message over the second registration completes", sends, receives);
  if (const auto wrong = to.difference(0, kBytes, 1)) {
    throw Failed{"the message as it was sent", *wrong};
  }
  session.expect(session.plugin().dereg_mr(comms.sends[0], from_second), Call::kDeregMr);
  session.expect(session.plugin().dereg_mr(comms.receives[0], to_second), Call::kDeregMr);
  close_comms(session, comms);
}

void check_register_type(Session& session) {
  session.start();
  if ((session.properties().ptr_support & abi::kCudaPointer) != 0) {
    throw Skipped{"a type that the plugin does not support: it takes CUDA pointers"};
  }
  const Comms comms = connect_self(session, session.context());
  Region region(4096);
  void* mhandle = nullptr;
  const abi::Result result = session.plugin().reg_mr(comms.sends[0], region.data(), region.bytes(),
                                                     abi::kCudaPointer, &mhandle);
  if (result == abi::kSuccess) {
    throw Failed{"an error from regMr for a type that ptrSupport lacks", "success"};
  }
  close_comms(session, comms);
}

// NCCL hands over what it got: NULL only to a plugin that gives it.
void check_deregister_null(Session& session) {
  session.start();
  const Comms comms = connect_self(session, session.context());
  Region region(std::size_t{4} << 20);
  bool gave_null = false;
  for (void* comm : {comms.sends[0], comms.receives[0]}) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, region.bytes()}) {
      void* mhandle = nullptr;
      session.expect(
          session.plugin().reg_mr(comm, region.data(), bytes, abi::kHostPointer, &mhandle),
          Call::kRegMr);
      gave_null = gave_null || mhandle == nullptr;
      const abi::Result result = session.plugin().dereg_mr(comm, mhandle);
      if (result != abi::kSuccess) {
        throw Failed{
            fmt::format("success from deregMr({})", mhandle == nullptr ? "NULL" : "handle"),
            describe(result)};
      }
    }
  }
  close_comms(session, comms);
  if (!gave_null) throw Skipped{"NULL handles: regMr gives none for host memory"};
}

void check_register_meanwhile(Session& session) {
  session.start();
  const Comms comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  std::vector<Message> messages;
  for (std::size_t i = 0; i < 400; ++i) messages.push_back({i * 20'000, 15'000, 0});
  std::atomic<bool> ended{false};
  session.in_threads({
      [&] {
        try {
          for (std::uint64_t round = 0; round < 3; ++round)
            transfer(session, comm, messages, round);
        } catch (...) {
          ended = true;
          throw;
        }
        ended = true;
      },
      // The service thread, with buffers of users.
      [&] {
        Region region(300'000);
        do {
          void* whole = region.register_on(session, comm);
          void* part = nullptr;
          session.expect(
              session.plugin().reg_mr(comm, region.at(1001), 77'777, abi::kHostPointer, &part),
              Call::kRegMr);
          session.expect(session.plugin().dereg_mr(comm, whole), Call::kDeregMr);
          session.expect(session.plugin().dereg_mr(comm, part), Call::kDeregMr);
          sched_yield();
        } while (!ended);
      },
  });
  meet_and_close(session, comms);
}

constexpr std::string_view kWhere =
    "src/transport/net.cc: sendProxyConnect, recvProxyConnect, ncclNetRegisterBuffer";

constexpr Rule kRegistrationRules[] = {
    {"register", "Host memory of any size and alignment can be registered",
     "Users' buffers start anywhere and have any length.", kWhere, "self-connection", 1, 1,
     check_register},
    {"register-twice", "The same memory can be registered many times",
     "The pool of send and receive is registered once for each connection; ending one registration "
     "must leave the others.",
     kWhere, "self-connection", 1, 1, check_register_twice},
    {"register-type", "A type of memory that is not supported is an error",
     "Success makes NCCL hand over pointers that the plugin cannot read.", kWhere,
     "self-connection", 1, 1, check_register_type},
    {"deregister-null", "deregMr takes NULL where regMr gives it",
     "A plugin may give NULL for host memory, and NCCL gives it back.", kWhere, "self-connection",
     1, 1, check_deregister_null},
    {"register-meanwhile", "Memory can be registered while messages are in flight",
     "From 2.24 the service thread registers users' buffers on a connection that the progress "
     "thread uses.",
     kWhere, "transfer", 2, 2, check_register_meanwhile},
};

}  // namespace

std::span<const Rule> registration_rules() { return kRegistrationRules; }

}  // namespace ropewalk::check_plugin
