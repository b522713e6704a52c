// Rules about messages: their bytes, size and location, and the outputs of the calls.
#include <algorithm>
#include <numeric>
#include <vector>

#include "check_plugin/connections.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"

namespace ropewalk::check_plugin {
namespace {

constexpr std::size_t kLlBytes = 614'400;  // NCCL's largest LL128 message

void* one_way_comm(Session& session) {
  session.start();
  const Comms comms = connect_one_way(session);
  return session.sender() ? comms.sends[0] : comms.receives[0];
}

// One after the other in a region, without a gap.
std::vector<Message> packed(const std::vector<std::size_t>& sizes) {
  std::vector<Message> messages;
  std::size_t offset = 0;
  for (const std::size_t bytes : sizes) {
    messages.push_back({offset, bytes, 0});
    offset += bytes;
  }
  return messages;
}

void check_transfer(Session& session) {
  transfer(session, one_way_comm(session), packed({4096, 4096}), 10, 1);
}

void check_sizes(Session& session) {
  transfer(
      session, one_way_comm(session),
      packed({1, 7, 8, 16, 120, 128, 1000, 4096, 4097, 65'535, 65'536, 131'072, 524'289, kLlBytes,
              std::size_t{1} << 20, std::size_t{4} << 20, (std::size_t{8} << 20) + 13}),
      20);
}

void check_zero_bytes(Session& session) {
  transfer(session, one_way_comm(session), packed({0, 100, 0, 0, 200'000, 0, 1, 0}), 30);
}

// Slots of one registration, as NCCL uses its buffers: the k-th message is in slot k mod 8.
void check_offsets(Session& session) {
  void* comm = one_way_comm(session);
  constexpr std::size_t kSlot = 65'536;
  Region region(kSteps * kSlot);
  void* mhandle = region.register_on(session, comm);
  constexpr std::size_t kRounds = 64;
  const auto offset_of = [](std::size_t i) { return i % kSteps * kSlot + (i * 13 + 1) % 100; };
  const auto bytes = [](std::size_t i) { return 1 + (i * 7919) % (kSlot - 200); };
  std::vector<Message> messages;
  for (std::size_t i = 0; i < kRounds; ++i) messages.push_back({offset_of(i), bytes(i), 0});
  session.in_thread([&] {
    if (session.sender()) {
      Sends sends(session, comm, region, mhandle, messages, kSteps / 2);
      sends.may_post = [&](std::size_t i) {
        region.fill(messages[i].offset, messages[i].bytes, i);
        return true;
      };
      run(session, "all sends complete", sends);
      return;
    }
    Receives receives(session, comm, region, mhandle, single_slots(messages), kSteps / 2);
    receives.on_done = [&](std::size_t i) {
      const Message& message = messages[i];
      if (const auto wrong = region.difference(message.offset, message.bytes, i)) {
        throw Failed{fmt::format("message {} at offset {} of the registration", i, message.offset),
                     *wrong};
      }
      const std::size_t begin = i % kSteps * kSlot;
      const std::size_t end = message.offset + message.bytes;
      if (region.first_written(begin, message.offset - begin) ||
          region.first_written(end, begin + kSlot - end)) {
        throw Failed{fmt::format("message {} in its {} bytes only", i, message.bytes),
                     "a write beside them"};
      }
      region.blank(message.offset, message.bytes);
    };
    run(session, "all receives complete", receives);
    region.check_guards();
  });
}

void check_larger_receive(Session& session) {
  transfer(
      session, one_way_comm(session),
      [] {
        std::vector<Message> messages;
        for (std::size_t i = 0; i < 24; ++i) {
          messages.push_back({i * 131'072, std::vector<std::size_t>{7, 1000, 0, 65'536}[i % 4], 0});
        }
        return messages;
      }(),
      40, 4, 131'072);
}

void check_truncation(Session& session) {
  session.start();
  if (session.plugin().version() != 8 || session.properties().reg_is_global == 0) {
    throw Skipped{"regIsGlobal in version 8"};
  }
  const Comms comms = connect_one_way(session);
  constexpr std::size_t kSent = 100'000;
  constexpr std::size_t kPosted = 60'000;
  Region region(kSent);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  void* mhandle = region.register_on(session, comm);
  if (session.sender()) {
    region.fill(0, kSent, 1);
    void* request = nullptr;
    session.wait("isend takes the message", [&] {
      request = post_send(session, comm, {region.data(), kSent, 0, mhandle});
      return request != nullptr;
    });
    std::vector<int> size(1, kUnwritten);
    session.wait("the send completes", [&] { return test_request(session, request, &size); });
    if (size[0] != static_cast<int>(kPosted)) {
      throw Failed{"the size that was received from the sender's test", output(size[0])};
    }
  } else {
    Receives receives(session, comm, region, mhandle, {{{0, kPosted, kPosted, 0}}});
    run(session, "the receive completes", receives);
    if (region.first_written(kPosted, kSent - kPosted)) {
      throw Failed{"a send beyond what is posted is cut", "a write behind the posted bytes"};
    }
  }
}

void check_outputs(Session& session) {
  session.start();
  session.be_strict();
  const Comms comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  std::vector<Message> messages;
  for (std::size_t i = 0; i < 200; ++i) messages.push_back({i * 20'100, 37 + i * 100, 0});
  transfer(session, comm, messages, 50, session.plugin().most_requests());
}

// Smaller than the posted size, so that the two sizes differ.
void check_received_size(Session& session) {
  session.start();
  const Comms comms = connect_one_way(session);
  constexpr std::size_t kRoom = 70'000;
  const std::vector<std::size_t> sizes = {1, 0, 65'536, 4097, kRoom, 0, 8};
  const int most = std::min(session.properties().max_recvs, 4);
  Receives::Groups groups;
  std::vector<Message> messages;
  for (int parts = 1; parts <= most; ++parts) {
    for (std::size_t round = 0; round < sizes.size(); ++round) {
      std::vector<Slot>& group = groups.emplace_back();
      for (int part = 0; part < parts; ++part) {
        const std::size_t bytes = sizes[(round + static_cast<std::size_t>(part)) % sizes.size()];
        group.push_back({messages.size() * kRoom, kRoom, bytes, part});
        messages.push_back({messages.size() * kRoom, bytes, part});
      }
    }
  }
  Region region(messages.size() * kRoom);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  void* mhandle = region.register_on(session, comm);
  session.in_thread([&] {
    if (session.sender()) {
      Sends sends(session, comm, region, mhandle, messages);
      run(session, "all sends complete", sends);
      return;
    }
    Receives receives(session, comm, region, mhandle, std::move(groups), 4);
    receives.checks_sizes = true;
    run(session, "all receives complete", receives);
  });
}

// NCCL's bootstrap, and releases before 2.20 for sends, pass NULL for sizes.
void check_null_sizes(Session& session) {
  void* comm = one_way_comm(session);
  Region region(10'000);
  void* mhandle = region.register_on(session, comm);
  void* request = nullptr;
  session.wait("isend and irecv take a message", [&] {
    const Part part{region.data(), region.bytes(), 0, mhandle};
    request =
        session.sender() ? post_send(session, comm, part) : post_receive(session, comm, {part});
    return request != nullptr;
  });
  session.wait("the message completes", [&] { return test_request(session, request, nullptr); });
}

void check_optional_completion(Session& session) {
  session.start();
  if (session.plugin().version() < 9) throw Skipped{"early completion: version 9 and later"};
  session.be_strict();
  const Comms comms = connect_one_way(session);
  constexpr std::size_t kBytes = 4096;
  constexpr std::size_t kCount = 64;
  Region region(kBytes * kCount);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < kCount; ++i) messages.push_back({i * kBytes, kBytes, 0});
  if (session.sender()) {
    void* mhandle = region.register_on(session, comms.sends[0]);
    for (std::size_t i = 0; i < kCount; ++i) region.fill(i * kBytes, kBytes, i);
    Sends sends(session, comms.sends[0], region, mhandle, messages);
    run(session, "all sends complete", sends);
    return;
  }
  void* mhandle = region.register_on(session, comms.receives[0]);
  Receives receives(session, comms.receives[0], region, mhandle, single_slots(messages));
  receives.optional_completion = true;
  run(session, "all receives complete", receives);
  // The data may come later than the completion.
  session.wait("the data comes", [&] {
    for (std::size_t i = 0; i < kCount; ++i) {
      if (region.difference(i * kBytes, kBytes, i)) return false;
    }
    return true;
  });
}

void check_irecv_consumed(Session& session) {
  session.start();
  if (!session.plugin().has(Call::kIrecvConsumed)) return;  // as it should be
  const Comms comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  Region region(1000);
  void* mhandle = region.register_on(session, comm);
  for (int i = 0; i < 20; ++i) {
    void* request = nullptr;
    const Part part{region.data(), region.bytes(), 0, mhandle};
    session.wait("isend and irecv take a message", [&] {
      request =
          session.sender() ? post_send(session, comm, part) : post_receive(session, comm, {part});
      return request != nullptr;
    });
    std::vector<int> sizes(1);
    session.wait("the message completes", [&] { return test_request(session, request, &sizes); });
    if (session.receiver()) {
      session.expect(session.plugin().irecv_consumed(comm, 1, request), Call::kIrecvConsumed);
    }
  }
}

void check_groups(Session& session) {
  session.start();
  const int most = std::min(session.properties().max_recvs, 8);
  if (most < 2) throw Skipped{"grouped receives: maxRecvs is 1"};
  const Comms comms = connect_one_way(session);
  constexpr std::size_t kBytes = 20'000;
  constexpr std::size_t kRounds = 40;
  // Groups of 1 to the most; the tags of a group come in another order than they were posted.
  Receives::Groups groups;
  std::vector<Message> messages;
  std::vector<std::uint64_t> seeds;
  Region region(kRounds * 8 * kBytes);
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::size_t parts = 1 + round % static_cast<std::size_t>(most);
    std::vector<Slot> group;
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t bytes = (round * 8 + part) * 37 % kBytes;
      group.push_back({(round * 8 + part) * kBytes, kBytes, bytes, static_cast<int>(100 + part)});
    }
    for (std::size_t i = 0; i < parts; ++i) {
      const Slot& slot = group[(i * (parts - 1) + round) % parts];
      messages.push_back({slot.offset, slot.expected, slot.tag});
    }
    groups.push_back(std::move(group));
  }
  if (session.sender()) {
    void* mhandle = region.register_on(session, comms.sends[0]);
    for (const Message& message : messages) {
      region.fill(message.offset, message.bytes, message.offset);
    }
    session.in_thread([&] {
      Sends sends(session, comms.sends[0], region, mhandle, messages);
      run(session, "all sends to grouped receives complete", sends);
    });
    return;
  }
  void* mhandle = region.register_on(session, comms.receives[0]);
  session.in_thread([&] {
    Receives receives(session, comms.receives[0], region, mhandle, groups, 4);
    receives.on_done = [&](std::size_t number) {
      for (const Slot& slot : groups[number]) {
        if (const auto wrong = region.difference(slot.offset, slot.expected, slot.offset)) {
          throw Failed{fmt::format("in receive {} the message of tag {}", number, slot.tag),
                       *wrong};
        }
        if (region.first_written(slot.offset + slot.expected, slot.posted - slot.expected)) {
          throw Failed{"no write behind a message of a group", "one"};
        }
      }
    };
    run(session, "all grouped receives complete", receives);
  });
}

// Operations that share a connection post independently: a send for the next group may be offered
// before the present one is full.
void check_group_order(Session& session) {
  session.start();
  if (session.properties().max_recvs < 2) throw Skipped{"grouped receives: maxRecvs is 1"};
  const Comms comms = connect_one_way(session);
  constexpr std::size_t kBytes = 30'000;
  Region region(4 * kBytes);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  void* mhandle = region.register_on(session, comm);
  if (session.receiver()) {
    Receives receives(session, comm, region, mhandle,
                      {{{0, kBytes, kBytes, 0}, {kBytes, kBytes, kBytes, 1}},
                       {{2 * kBytes, kBytes, kBytes, 2}, {3 * kBytes, kBytes, kBytes, 3}}});
    receives.on_done = [&](std::size_t number) {
      for (std::size_t i = 2 * number; i < 2 * number + 2; ++i) {
        if (const auto wrong = region.difference(i * kBytes, kBytes, i)) {
          throw Failed{fmt::format("the message of tag {} in its buffer", i), *wrong};
        }
      }
    };
    run(session, "both groups complete", receives);
    return;
  }
  struct Pending {
    std::size_t tag;
    void* request = nullptr;
    bool done = false;
  };
  std::vector<Pending> pending = {{0}, {2}, {1}, {3}};
  for (const Pending& each : pending) region.fill(each.tag * kBytes, kBytes, each.tag);
  session.wait("all sends complete", [&] {
    bool all = true;
    for (Pending& each : pending) {
      if (each.request == nullptr) {
        each.request =
            post_send(session, comm,
                      {region.at(each.tag * kBytes), kBytes, static_cast<int>(each.tag), mhandle});
      }
      if (each.request != nullptr && !each.done) {
        each.done = test_request(session, each.request, nullptr);
      }
      all = all && each.done;
    }
    return all;
  });
}

void check_large_message(Session& session) {
  if (!session.options().large) throw Skipped{"--large: it takes 4.5 GiB of memory"};
  session.start();
  const std::size_t bytes = (std::size_t{2} << 30) + 12'345;
  if (session.plugin().largest_message() < bytes || session.properties().max_p2p_bytes < bytes) {
    throw Skipped{"messages above 2 GiB: version 9 and later, and maxP2pBytes"};
  }
  const Comms comms = connect_one_way(session);
  transfer(session, session.sender() ? comms.sends[0] : comms.receives[0], {{0, bytes, 0}}, 60);
}

constexpr std::string_view kProgress = "src/transport/net.cc: sendProxyProgress, recvProxyProgress";

constexpr Rule kTransferRules[] = {
    {"transfer", "A message arrives as it was sent", "All other rules about messages need this.",
     kProgress, "connect", 2, 1, check_transfer},
    {"sizes", "Messages of all sizes arrive as they were sent",
     "From one byte to NCCL's largest steps, several in flight.", kProgress, "transfer", 2, 2,
     check_sizes},
    {"zero-bytes", "Messages of no bytes take one send and one receive each",
     "A rank without data in a collective's step sends an empty message.", kProgress, "transfer", 2,
     1, check_zero_bytes},
    {"offsets", "A message lies anywhere in a registration, and nothing beside it is touched",
     "NCCL registers a buffer once and uses eight slots of it in turn.", kProgress, "transfer", 2,
     1, check_offsets},
    {"larger-receive", "A receive may be larger than its message",
     "NCCL posts the largest possible size; memory behind the message must not change.", kProgress,
     "transfer", 2, 1, check_larger_receive},
    {"received-size", "test gives the sizes of what was received",
     "NCCL flushes GPU memory only when they add up to more than 0; 2.20 to 2.23 go on from there "
     "in registered buffers. It needs them for nothing else, and neither do the other rules.",
     kProgress, "transfer", 2, 1, check_received_size},
    {"truncation", "A message longer than its receive is cut",
     "2.20 to 2.23 send more than is posted with registered buffers, and read the size from the "
     "sender's test.",
     kProgress, "transfer", 2, 1, check_truncation},
    {"outputs", "isend, irecv and test always write their outputs, and no more",
     "NCCL clears neither *request nor *done, and has as many sizes as buffers.", kProgress,
     "transfer", 2, 1, check_outputs},
    {"null-sizes", "test takes NULL for sizes",
     "The bootstrap passes NULL, and so do releases before 2.20 for sends.",
     "src/bootstrap.cc: netSendRecv; src/transport/net.cc", "transfer", 2, 1, check_null_sizes},
    {"optional-completion", "irecv takes 1 in *request",
     "From 2.24 NCCL asks for early completion where it sees the data itself; the plugin still "
     "writes a request.",
     kProgress, "transfer", 2, 1, check_optional_completion},
    {"irecv-consumed", "irecvConsumed is NULL, or takes a completed request",
     "NCCL calls it for each receive after it completed.", kProgress, "transfer", 2, 1,
     check_irecv_consumed},
    {"groups", "Grouped receives are filled by tag",
     "Sends and receives between the same GPUs share a connection; up to maxRecvs are one irecv.",
     "src/proxy.cc, src/transport/net.cc: recvProxyProgress", "transfer", 2, 1, check_groups},
    {"group-order", "A send for a later group waits for its turn",
     "Operations that share a connection do not wait for each other.", kProgress, "groups", 2, 1,
     check_group_order},
    {"large-message", "A message above 2 GiB arrives as it was sent",
     "From version 9 sizes are size_t, and users' buffers are sent whole up to maxP2pBytes.",
     kProgress, "transfer", 2, 12, check_large_message},
};

}  // namespace

std::span<const Rule> transfer_rules() { return kTransferRules; }

}  // namespace ropewalk::check_plugin
