// Types of the API that programs may include on their own.
#pragma once

#define DIS_MAX_NSCIS 8
#define DIS_BROADCAST_NODEID_GROUP_ALL 252
#define DIS_DMA_MAX_VECLEN 256

typedef unsigned int dis_nodeId_list_t[DIS_MAX_NSCIS];
typedef unsigned int dis_virt_adapter_t;
