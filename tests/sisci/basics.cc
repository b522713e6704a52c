// Set-up, nodes, queries, and the names of errors.
#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "library.h"

using namespace software_sisci;

static_assert(kMaxAdapters == DIS_MAX_NSCIS);

void SCIInitialize(unsigned int /*flags*/, sci_error_t* error) {
  call(error, [] { Library::start(); });
}
SISCI_EXPORT(SCIInitialize);

void SCITerminate() { Library::stop(); }
SISCI_EXPORT(SCITerminate);

void SCIOpen(sci_desc_t* sd, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(sd != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    Library& mine = library();
    require(mine.settings()->driver, SCI_ERR_NOT_AVAILABLE);
    auto made = std::make_unique<sci_desc>();
    mine.open(*made);
    *sd = made.release();
  });
}
SISCI_EXPORT(SCIOpen);

void SCIClose(sci_desc_t sd, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(sd != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(sd->children == 0, SCI_ERR_BUSY);
    if (Library* const mine = Library::get(); mine != nullptr) mine->close(*sd);
    delete sd;
  });
}
SISCI_EXPORT(SCIClose);

void SCIGetLocalNodeId(unsigned int adapter, unsigned int* nodeId, unsigned int /*flags*/,
                       sci_error_t* error) {
  call(error, [&] {
    require(nodeId != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    const Library& mine = library();
    require(mine.settings()->driver, SCI_ERR_NOT_AVAILABLE);
    mine.check_adapter(adapter);
    *nodeId = mine.settings()->node_id(mine.host(), adapter);
  });
}
SISCI_EXPORT(SCIGetLocalNodeId);

namespace {

// By the settings' names, by host0, host1, ..., or by the machine's own name, which is this host.
std::optional<unsigned> host_of_name(const Library& mine, const std::string& name) {
  const auto settings = mine.settings();
  const auto found = settings->names.find(name);
  if (found != settings->names.end() && found->second < settings->hosts) return found->second;
  for (unsigned host = 0; host < settings->hosts; ++host) {
    if (name == "host" + std::to_string(host)) return host;
  }
  std::array<char, HOST_NAME_MAX + 1> machine{};
  if (gethostname(machine.data(), HOST_NAME_MAX) == 0 && name == machine.data()) return mine.host();
  return std::nullopt;
}

}  // namespace

void SCIGetNodeIdByAdapterName(char* name, dis_nodeId_list_t* nodeIds, dis_virt_adapter_t* type,
                               unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(name != nullptr && nodeIds != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    const Library& mine = library();
    const auto settings = mine.settings();
    const std::optional<unsigned> host = host_of_name(mine, name);
    for (unsigned adapter = 0; adapter < DIS_MAX_NSCIS; ++adapter) {
      const bool there = host && adapter < settings->adapters;
      (*nodeIds)[adapter] = there ? settings->node_id(*host, adapter) : 0;
    }
    if (type != nullptr) *type = 0;
    require(host.has_value(), SCI_ERR_NO_SUCH_NODEID);
  });
}
SISCI_EXPORT(SCIGetNodeIdByAdapterName);

int SCIProbeNode(sci_desc_t sd, unsigned int adapter, unsigned int nodeId, unsigned int /*flags*/,
                 sci_error_t* error) {
  return call(error, [&] {
    require(sd != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    (void)library().reach(adapter, nodeId);
    return 1;
  });
}
SISCI_EXPORT(SCIProbeNode);

namespace {

void query_adapter(const sci_query_adapter_t& query) {
  const Library& mine = library();
  mine.check_adapter(query.localAdapterNo);
  require(query.data != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  const auto settings = mine.settings();
  const unsigned adapter = query.localAdapterNo;
  const unsigned what = query.subcommand;
  const auto own = settings->link_widths.find(query.portNo);
  const unsigned width = own == settings->link_widths.end() ? settings->link_width : own->second;
  const bool up = settings->link_up(mine.host(), adapter) && width > 0;
  const bool of_link = what == SCI_Q_ADAPTER_LINK_OPERATIONAL || what == SCI_Q_ADAPTER_LINK_WIDTH ||
                       what == SCI_Q_ADAPTER_LINK_SPEED;
  require(!of_link || query.portNo < settings->links, SCI_ERR_ILLEGAL_PARAMETER);
  unsigned answer = 0;
  if (what == SCI_Q_ADAPTER_NODEID) {
    answer = settings->node_id(mine.host(), adapter);
  } else if (what == SCI_Q_ADAPTER_SERIAL_NUMBER) {
    answer = 7001 + 16 * mine.host() + adapter;
  } else if (what == SCI_Q_ADAPTER_CARD_TYPE) {
    answer = 0x3508;
  } else if (what == SCI_Q_ADAPTER_CONFIGURED || what == SCI_Q_ADAPTER_LINK_ENABLED) {
    answer = 1;
  } else if (what == SCI_Q_ADAPTER_BDF) {
    answer = (settings->bus + adapter) << 8 | adapter % 32 << 3;
  } else if (what == SCI_Q_ADAPTER_NUMBER_OF_LINKS) {
    answer = settings->links;
  } else if (what == SCI_Q_ADAPTER_LINK_OPERATIONAL || what == SCI_Q_ADAPTER_LINK_CABLE_INSERTED) {
    answer = up ? 1 : 0;
  } else if (what == SCI_Q_ADAPTER_LINK_WIDTH) {
    answer = up ? width : 0;
  } else if (what == SCI_Q_ADAPTER_LINK_SPEED) {
    answer = up ? settings->link_generation : 0;
  } else if (what == SCI_Q_ADAPTER_LINK_UPTIME) {
    answer = up ? 1 : 0;
  } else if (what == SCI_Q_ADAPTER_LINK_DOWNTIME) {
    answer = up ? 0 : 1;
  } else if (what == SCI_Q_ADAPTER_DMA_MTU) {
    answer = 512;
  } else if (what == SCI_Q_ADAPTER_DMA_SIZE_ALIGNMENT ||
             what == SCI_Q_ADAPTER_DMA_OFFSET_ALIGNMENT ||
             what == SCI_Q_ADAPTER_SUGGESTED_MIN_DMA_SIZE) {
    answer = 1;
  } else if (what == SCI_Q_ADAPTER_MCAST_MAX_GROUPS) {
    answer = settings->multicast_groups;
  } else if (what != SCI_Q_ADAPTER_LINK_PARTNER_PORT_NO) {
    throw Failure{SCI_ERR_ILLEGAL_QUERY};
  }
  std::memcpy(query.data, &answer, sizeof answer);
}

void query_dma(const sci_query_dma_t& query) {
  library().check_adapter(query.localAdapterNo);
  require(query.data != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
  if (query.subcommand == SCI_Q_DMA_AVAILABLE) {
    const unsigned yes = 1;
    std::memcpy(query.data, &yes, sizeof yes);
  } else if (query.subcommand == SCI_Q_DMA_CAPABILITIES) {
    const sci_dma_capabilities_t capabilities = {
        16, static_cast<unsigned>(kMaxTransfer), DIS_DMA_MAX_VECLEN, 1, 1, 0, 1, 64};
    std::memcpy(query.data, &capabilities, sizeof capabilities);
  } else {
    throw Failure{SCI_ERR_ILLEGAL_QUERY};
  }
}

}  // namespace

void SCIQuery(unsigned int command, void* data, unsigned int /*flags*/, sci_error_t* error) {
  call(error, [&] {
    require(data != nullptr, SCI_ERR_ILLEGAL_PARAMETER);
    require(library().settings()->driver, SCI_ERR_NOT_AVAILABLE);
    if (command == SCI_Q_ADAPTER) return query_adapter(*static_cast<sci_query_adapter_t*>(data));
    if (command == SCI_Q_DMA) return query_dma(*static_cast<sci_query_dma_t*>(data));
    if (command == SCI_Q_API || command == SCI_Q_VENDORID) {
      const auto& text = *static_cast<sci_query_string_t*>(data);
      require(text.str != nullptr && text.length > 0, SCI_ERR_ILLEGAL_PARAMETER);
      std::strncpy(text.str, command == SCI_Q_API ? "2.0 software" : "Ropewalk software SISCI",
                   text.length - 1);
      text.str[text.length - 1] = 0;
      return;
    }
    if (command == SCI_Q_LOCAL_SEGMENT) {
      auto& query = *static_cast<sci_query_local_segment_t*>(data);
      require(query.segment != nullptr && query.subcommand == SCI_Q_LOCAL_SEGMENT_IOADDR,
              SCI_ERR_ILLEGAL_QUERY);
      query.data.ioaddr = reinterpret_cast<sci_ioaddr_t>(query.segment->memory);
      return;
    }
    if (command == SCI_Q_REMOTE_SEGMENT) {
      auto& query = *static_cast<sci_query_remote_segment_t*>(data);
      require(query.segment != nullptr && query.subcommand == SCI_Q_REMOTE_SEGMENT_IOADDR,
              SCI_ERR_ILLEGAL_QUERY);
      query.data.ioaddr = reinterpret_cast<sci_ioaddr_t>(query.segment->memory);
      return;
    }
    if (command == SCI_Q_MAP) {
      auto& query = *static_cast<sci_query_map_t*>(data);
      require(query.map != nullptr && query.subcommand == SCI_Q_MAP_IOADDR, SCI_ERR_ILLEGAL_QUERY);
      query.data = reinterpret_cast<std::uint64_t>(query.map->pointer);
      return;
    }
    throw Failure{SCI_ERR_ILLEGAL_QUERY};
  });
}
SISCI_EXPORT(SCIQuery);

const char* SCIGetErrorString(sci_error_t code) {
  switch (code) {
    case SCI_ERR_OK: return "OK";
    case SCI_ERR_BUSY: return "Resource busy";
    case SCI_ERR_FLAG_NOT_IMPLEMENTED: return "Flag is not implemented";
    case SCI_ERR_ILLEGAL_FLAG: return "Illegal flag";
    case SCI_ERR_NOSPC: return "Out of operating system resources";
    case SCI_ERR_API_NOSPC: return "Out of API resources";
    case SCI_ERR_HW_NOSPC: return "Out of hardware resources";
    case SCI_ERR_NOT_IMPLEMENTED: return "Function is not implemented";
    case SCI_ERR_ILLEGAL_ADAPTERNO: return "Illegal adapter number";
    case SCI_ERR_NO_SUCH_ADAPTERNO: return "No such adapter number";
    case SCI_ERR_TIMEOUT: return "Timed out";
    case SCI_ERR_OUT_OF_RANGE: return "Out of range";
    case SCI_ERR_NO_SUCH_SEGMENT: return "No such segment or interrupt";
    case SCI_ERR_ILLEGAL_NODEID: return "Illegal node id";
    case SCI_ERR_CONNECTION_REFUSED: return "Connection refused";
    case SCI_ERR_SEGMENT_NOT_CONNECTED: return "Segment is not connected";
    case SCI_ERR_SIZE_ALIGNMENT: return "Size is not aligned";
    case SCI_ERR_OFFSET_ALIGNMENT: return "Offset is not aligned";
    case SCI_ERR_ILLEGAL_PARAMETER: return "Illegal parameter";
    case SCI_ERR_MAX_ENTRIES: return "Too many entries";
    case SCI_ERR_SEGMENT_NOT_PREPARED: return "Segment is not prepared";
    case SCI_ERR_ILLEGAL_ADDRESS: return "Illegal address";
    case SCI_ERR_ILLEGAL_OPERATION: return "Illegal operation";
    case SCI_ERR_ILLEGAL_QUERY: return "Illegal query";
    case SCI_ERR_SEGMENTID_USED: return "Segment id is in use";
    case SCI_ERR_SYSTEM: return "System error";
    case SCI_ERR_CANCELLED: return "Cancelled";
    case SCI_ERR_NOT_CONNECTED: return "Not connected";
    case SCI_ERR_NOT_AVAILABLE: return "Not available";
    case SCI_ERR_INCONSISTENT_VERSIONS: return "Library and driver differ in version";
    case SCI_ERR_COND_INT_RACE_PROBLEM: return "Conditional interrupt came too early";
    case SCI_ERR_OVERFLOW: return "Overflow";
    case SCI_ERR_NOT_INITIALIZED: return "Library is not initialized";
    case SCI_ERR_ACCESS: return "Access denied";
    case SCI_ERR_NOT_SUPPORTED: return "Not supported";
    case SCI_ERR_DEPRECATED: return "Deprecated";
    case SCI_ERR_NO_SUCH_NODEID: return "No such node id";
    case SCI_ERR_NODE_NOT_RESPONDING: return "Node does not respond";
    case SCI_ERR_NO_REMOTE_LINK_ACCESS: return "No access to the remote link";
    case SCI_ERR_NO_LINK_ACCESS: return "No access to the link";
    case SCI_ERR_TRANSFER_FAILED: return "Transfer failed";
  }
  return "Unknown error";
}
SISCI_EXPORT(SCIGetErrorString);
