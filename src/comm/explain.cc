#include "comm/explain.h"

#include <nlohmann/json.hpp>

#include "comm/communicator.h"

namespace ropewalk::comm {
namespace {

// Of the operations whose larger buffer has a block for each rank.
bool has_block_per_rank(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter: return true;
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kSendRecv: return false;
  }
  return false;
}

}  // namespace

std::string explain(Communicator& comm, Collective collective, std::size_t bytes, int root) {
  CollectiveCall call;
  call.collective = collective;
  call.type = DataType::kUint8;
  call.root = has_root(collective) ? root : 0;
  const auto ranks = static_cast<std::size_t>(comm.size());
  call.count = has_block_per_rank(collective) ? bytes / ranks : bytes;
  const Communicator::Explained explained = comm.explain(call);

  nlohmann::json candidates = nlohmann::json::array();
  for (const tune::Choice& choice : explained.candidates) {
    const bool by_address = choice.address_chunk_bytes > 0;
    candidates.push_back(
        {{"algorithm", choice.algorithm},
         {"channels", choice.channels},
         {"chunk_bytes", by_address ? choice.address_chunk_bytes : choice.chunk_bytes},
         {"by_address", by_address},
         {"predicted_us", choice.predicted_seconds * 1e6}});
  }
  const std::string network = comm.links().network();
  const nlohmann::json report = {
      {"operation", name(collective)},
      {"bytes", bytes},
      {"root", has_root(collective) ? nlohmann::json(root) : nlohmann::json()},
      {"ranks", comm.size()},
      {"hosts", comm.facts().num_hosts},
      {"network", network.empty() ? nlohmann::json() : nlohmann::json(network)},
      {"candidates", std::move(candidates)},
      {"chosen", explained.chosen},
      {"chosen_by", explained.chosen_by}};
  return report.dump();
}

}  // namespace ropewalk::comm
