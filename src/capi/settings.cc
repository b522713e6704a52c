// Settings and tuning.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "capi/guard.h"
#include "comm/rank_record.h"
#include "comm/runtime.h"
#include "ropewalk/diagnostics.h"
#include "tune/machine_constants.h"
#include "tune/processors.h"
#include "tune/tuner.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

namespace {

nlohmann::json choices(const Config& config, int nranks) {
  tune::GroupFacts facts;
  facts.num_ranks = nranks;
  facts.max_ranks_per_host = nranks;
  facts.ranks_per_processor = static_cast<double>(nranks) / tune::Processors::usable().count();
  facts.all_by_address = config.text(Setting::kSingleCopy) != "off";
  const std::size_t slot_bytes = config.bytes(Setting::kSlotBytes);
  facts.slot_bytes = slot_bytes > 0 ? slot_bytes : comm::kSlotBytes;
  tune::Tuner tuner = tune::host_tuner(config, facts, tune::machine_constants(config),
                                       comm::Runtime::process().schedules());
  nlohmann::json all = nlohmann::json::object();
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    nlohmann::json rows = nlohmann::json::array();
    for (std::size_t bytes = 8; bytes <= std::size_t{64} << 20U; bytes *= 4) {
      const tune::Choice& choice = *tuner.choose(collective, 0, bytes);
      rows.push_back({{"unit_bytes", bytes},
                      {"algorithm", choice.algorithm},
                      {"channels", choice.channels},
                      {"chunk_bytes", choice.chunk_bytes},
                      {"address_chunk_bytes", choice.address_chunk_bytes},
                      {"predicted_us", choice.predicted_seconds * 1e6}});
    }
    all[std::string(name(collective))] = std::move(rows);
  }
  return all;
}

}  // namespace

extern "C" {

RW_API void rwFreeText(char* text) { std::free(text); }

RW_API rwResult_t rwSettingSet(const char* name, const char* value, const char* source) {
  return guarded("rwSettingSet", [&] {
    comm::Runtime::process().set(&checked(name, "name"), &checked(value, "value"),
                                 source == nullptr ? "API" : source);
  });
}

RW_API rwResult_t rwSettingsDescribe(char** text) {
  return guarded("rwSettingsDescribe", [&] {
    checked(text, "json");
    const Config config = comm::Runtime::process().config();
    nlohmann::json rows = nlohmann::json::array();
    for (const SettingRow& row : settings_table()) {
      rows.push_back({{"name", "ROPEWALK_" + std::string(row.name)},
                      {"type", name(row.type)},
                      {"default", row.default_value},
                      {"allowed", row.allowed},
                      {"help", row.help},
                      {"value", config.raw(row.id)},
                      {"source", config.source(row.id)}});
    }
    *text = duplicate(rows.dump());
  });
}

RW_API rwResult_t rwTuningDescribe(int nranks, int measure, char** text) {
  return guarded("rwTuningDescribe", [&] {
    checked(text, "json");
    if (nranks < 1 || nranks > 1024) {
      throw Error(Errc::kInvalidArgument, "nranks: {} is outside 1 to 1024", nranks);
    }
    const Config config = comm::Runtime::process().config();
    nlohmann::json object = nlohmann::json::parse(tune::describe_constants(config, measure != 0));
    object["ranks"] = nranks;
    object["choices"] = choices(config, nranks);
    *text = duplicate(object.dump());
  });
}

}  // extern "C"
