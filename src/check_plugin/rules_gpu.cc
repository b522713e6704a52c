// Rules about GPU memory, for plugins that take it.
#include <algorithm>
#include <vector>

#include "check_plugin/connections.h"
#include "check_plugin/gpu.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"

namespace ropewalk::check_plugin {
namespace {

// Flushes received data, as NCCL does before the GPU may read it.
void flush(Session& session, void* comm, const Part& part) {
  void* request = nullptr;
  session.expect(session.plugin().iflush(comm, {part}, &request), Call::kIflush);
  if (request == nullptr) return;
  session.wait("a flush completes", [&] { return test_request(session, request, nullptr); });
}

void transfer_between_gpus(Session& session, int gpu, void* comm,
                           const std::vector<Message>& messages, std::uint64_t seed,
                           std::size_t flushed_slot) {
  std::size_t bytes = 1;
  for (const Message& message : messages) bytes = std::max(bytes, message.offset + message.bytes);
  Region region(bytes, gpu);
  void* mhandle = region.register_on(session, comm);
  session.in_thread([&] {
    // NCCL's progress thread has the device set, without which no plugin could copy.
    Gpus::use(gpu);
    if (session.sender()) {
      for (std::size_t i = 0; i < messages.size(); ++i) {
        region.fill(messages[i].offset, messages[i].bytes, seed + i);
      }
      Sends sends(session, comm, region, mhandle, messages);
      run(session, "all sends from GPU memory complete", sends);
      return;
    }
    Receives receives(session, comm, region, mhandle, single_slots(messages));
    receives.on_done = [&](std::size_t i) {
      const Message& message = messages[i];
      // NCCL flushes when something came; up to 2.19 by the address of another slot.
      if (message.bytes > 0) {
        const Message& named =
            messages[flushed_slot == 0 ? i : (i + flushed_slot) % messages.size()];
        flush(session, comm,
              {region.at(named.offset), std::max<std::size_t>(named.bytes, 1), 0, mhandle});
      }
      if (const auto wrong = region.difference(message.offset, message.bytes, seed + i)) {
        throw Failed{
            fmt::format("message {} of {} bytes in GPU memory as it was sent", i, message.bytes),
            *wrong};
      }
    };
    run(session, "all receives into GPU memory complete", receives);
    region.check_guards();
  });
  session.expect(session.plugin().dereg_mr(comm, mhandle), Call::kDeregMr);
}

std::vector<Message> gpu_messages() {
  std::vector<Message> messages;
  std::size_t offset = 0;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{8}, std::size_t{128}, std::size_t{4096}, std::size_t{0},
        std::size_t{65'537}, std::size_t{614'400}, std::size_t{4} << 20, std::size_t{16} << 20}) {
    messages.push_back({offset, bytes, 0});
    offset += bytes;
  }
  return messages;
}

void check_gpu_transfer(Session& session) {
  const int gpu = start_with_gpu(session);
  const Comms comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  transfer_between_gpus(session, gpu, comm, gpu_messages(), 300, 0);
  meet_and_close(session, comms);
}

void check_gpu_flush(Session& session) {
  const int gpu = start_with_gpu(session);
  const Comms comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  std::vector<Message> messages;
  for (std::size_t i = 0; i < 64; ++i) messages.push_back({i * 70'000, 65'536, 0});
  transfer_between_gpus(session, gpu, comm, messages, 310, 3);
  meet_and_close(session, comms);
}

// LL in host memory and Simple in GPU memory go over one connection.
void check_gpu_and_host(Session& session) {
  const int gpu = start_with_gpu(session);
  const Comms comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  for (std::uint64_t round = 0; round < 5; ++round) {
    transfer(session, comm, {{0, 4096, 0}, {4096, 100'000, 0}}, 320 + round);
    transfer_between_gpus(session, gpu, comm, {{0, 65'536, 0}, {65'536, 1 << 20, 0}}, 330 + round,
                          0);
  }
  meet_and_close(session, comms);
}

constexpr std::string_view kWhere = "src/transport/net.cc: recvProxyProgress";

constexpr Rule kGpuRules[] = {
    {"gpu-transfer", "Messages from GPU memory arrive in GPU memory as they were sent",
     "CUDA in ptrSupport says that regMr takes GPU pointers.", kWhere, "transfer", 2, 3,
     check_gpu_transfer},
    {"gpu-flush", "A flush covers all received data, whatever its address",
     "2.12 to 2.19 pass the address of a later slot.", kWhere, "gpu-transfer", 2, 2,
     check_gpu_flush},
    {"gpu-and-host", "Host and GPU memory go over one connection",
     "LL stays in host memory while Simple uses the GPU's.", kWhere, "gpu-transfer", 2, 2,
     check_gpu_and_host},
};

}  // namespace

std::span<const Rule> gpu_rules() { return kGpuRules; }

}  // namespace ropewalk::check_plugin
