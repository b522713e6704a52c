#include "settings.h"

#include <fstream>
#include <functional>
#include <sstream>

namespace software_sisci {
namespace {

using Line = std::istringstream;
using Reader = std::function<bool(Line&, Settings&)>;

template <typename T>
Reader number(T Settings::*field) {
  return [field](Line& line, Settings& settings) {
    return static_cast<bool>(line >> settings.*field);
  };
}

Reader yes_or_no(bool Settings::*field) {
  return [field](Line& line, Settings& settings) {
    std::string word;
    line >> word;
    settings.*field = word == "yes";
    return word == "yes" || word == "no";
  };
}

bool iommu(Line& line, Settings& settings) {
  std::string word;
  line >> word;
  settings.iommu = word == "absent"   ? Iommu::kAbsent
                   : word == "broken" ? Iommu::kBroken
                                      : Iommu::kWorking;
  return word == "absent" || word == "broken" || word == "working";
}

bool node(Line& line, Settings& settings) {
  unsigned host = 0;
  unsigned adapter = 0;
  unsigned id = 0;
  if (!(line >> host >> adapter >> id)) return false;
  settings.node_ids[{host, adapter}] = id;
  return true;
}

bool name(Line& line, Settings& settings) {
  unsigned host = 0;
  std::string text;
  if (!(line >> host >> text)) return false;
  settings.names[text] = host;
  return true;
}

bool width_of_link(Line& line, Settings& settings) {
  unsigned link = 0;
  unsigned width = 0;
  if (!(line >> link >> width)) return false;
  settings.link_widths[link] = width;
  return true;
}

bool link_down(Line& line, Settings& settings) {
  unsigned host = 0;
  unsigned adapter = 0;
  if (!(line >> host >> adapter)) return false;
  settings.links_down.insert({host, adapter});
  return true;
}

bool cuda_library(Line& line, Settings& settings) {
  return static_cast<bool>(line >> settings.cuda_library);
}

bool bus(Line& line, Settings& settings) {
  return static_cast<bool>(line >> std::hex >> settings.bus);
}

const std::map<std::string, Reader>& readers() {
  static const std::map<std::string, Reader> all = {
      {"hosts", number(&Settings::hosts)},
      {"adapters", number(&Settings::adapters)},
      {"node", node},
      {"name", name},
      {"bus", bus},
      {"link_width", number(&Settings::link_width)},
      {"links", number(&Settings::links)},
      {"width_of_link", width_of_link},
      {"link_generation", number(&Settings::link_generation)},
      {"multicast_groups", number(&Settings::multicast_groups)},
      {"strict", yes_or_no(&Settings::strict)},
      {"driver", yes_or_no(&Settings::driver)},
      {"gpu_memory", yes_or_no(&Settings::gpu_memory)},
      {"cuda_library", cuda_library},
      {"iommu", iommu},
      {"link_down", link_down},
      {"attach_error", yes_or_no(&Settings::attach_error)},
      {"lose_transfer", number(&Settings::lose_transfer)},
      {"lose_all_transfers", yes_or_no(&Settings::lose_all_transfers)},
      {"lose_gpu_reads", yes_or_no(&Settings::lose_gpu_reads)},
      {"lose_gpu_writes", yes_or_no(&Settings::lose_gpu_writes)},
      {"lose_gpu_to_gpu", yes_or_no(&Settings::lose_gpu_to_gpu)},
      {"fail_transfer", number(&Settings::fail_transfer)},
      {"transfer_from_memory", yes_or_no(&Settings::transfer_from_memory)},
      {"delayed_stores", yes_or_no(&Settings::delayed_stores)},
      {"store_delay_ms", number(&Settings::store_delay_ms)},
      {"torn_flush", number(&Settings::torn_flush)},
      {"lost_flush", number(&Settings::lost_flush)},
      {"megabytes_per_second", number(&Settings::megabytes_per_second)},
      {"latency_us", number(&Settings::latency_us)},
      {"max_segments", number(&Settings::max_segments)},
      {"max_contiguous", number(&Settings::max_contiguous)},
      {"max_mapped", number(&Settings::max_mapped)},
      {"max_dma_queues", number(&Settings::max_dma_queues)},
      {"data_interrupt_bytes", number(&Settings::data_interrupt_bytes)},
      {"data_interrupt_slots", number(&Settings::data_interrupt_slots)},
  };
  return all;
}

}  // namespace

unsigned Settings::node_id(unsigned host, unsigned adapter) const {
  const auto given = node_ids.find({host, adapter});
  if (given != node_ids.end()) return given->second;
  return 4 * (host + 1) + 256 * adapter;
}

bool read_settings(const std::string& path, unsigned host, Settings& settings, std::string& why) {
  std::ifstream file(path);
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    Line line(text.substr(0, text.find('#')));
    std::string key;
    if (!(line >> key)) continue;
    Settings of_another_host;
    Settings* read = &settings;
    if (unsigned only = 0; key == "at_host" && line >> only >> key && only != host) {
      read = &of_another_host;
    }
    const auto found = readers().find(key);
    std::string rest;
    if (found == readers().end() || !found->second(line, *read) || line >> rest) {
      why = path + ":" + std::to_string(number) + ": " + text;
      return false;
    }
  }
  return true;
}

}  // namespace software_sisci
