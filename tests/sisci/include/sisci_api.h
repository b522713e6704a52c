// The functions of the API, as of its second version: sizes and offsets are size_t.
//
// The exported names carry a prefix, for programs with threads (MT) and without (ST); both name the
// same functions here. Macros give a program the names that it knows.
#pragma once

#include "sisci_constants.h"
#include "sisci_error.h"
#include "sisci_types.h"

#if defined(_REENTRANT) && !defined(SISCI_SINGLE_THREADED)
#define SISCI_FUNCTION(name) _SISCI_PUBLIC_FUNC_MT_##name
#else
#define SISCI_FUNCTION(name) _SISCI_PUBLIC_FUNC_ST_##name
#endif

#define SCIInitialize SISCI_FUNCTION(SCIInitialize)
#define SCITerminate SISCI_FUNCTION(SCITerminate)
#define SCIOpen SISCI_FUNCTION(SCIOpen)
#define SCIClose SISCI_FUNCTION(SCIClose)
#define SCIGetLocalNodeId SISCI_FUNCTION(SCIGetLocalNodeId)
#define SCIGetNodeIdByAdapterName SISCI_FUNCTION(SCIGetNodeIdByAdapterName)
#define SCIProbeNode SISCI_FUNCTION(SCIProbeNode)
#define SCIQuery SISCI_FUNCTION(SCIQuery)
#define SCIGetErrorString SISCI_FUNCTION(SCIGetErrorString)
#define SCICreateSegment SISCI_FUNCTION(SCICreateSegment)
#define SCIPrepareSegment SISCI_FUNCTION(SCIPrepareSegment)
#define SCISetSegmentAvailable SISCI_FUNCTION(SCISetSegmentAvailable)
#define SCISetSegmentUnavailable SISCI_FUNCTION(SCISetSegmentUnavailable)
#define SCIRemoveSegment SISCI_FUNCTION(SCIRemoveSegment)
#define SCIMapLocalSegment SISCI_FUNCTION(SCIMapLocalSegment)
#define SCIRegisterSegmentMemory SISCI_FUNCTION(SCIRegisterSegmentMemory)
#define SCIAttachPhysicalMemory SISCI_FUNCTION(SCIAttachPhysicalMemory)
#define SCIShareSegment SISCI_FUNCTION(SCIShareSegment)
#define SCIAttachLocalSegment SISCI_FUNCTION(SCIAttachLocalSegment)
#define SCIWaitForLocalSegmentEvent SISCI_FUNCTION(SCIWaitForLocalSegmentEvent)
#define SCIGetLocalSegmentId SISCI_FUNCTION(SCIGetLocalSegmentId)
#define SCIGetLocalSegmentSize SISCI_FUNCTION(SCIGetLocalSegmentSize)
#define SCIConnectSegment SISCI_FUNCTION(SCIConnectSegment)
#define SCIDisconnectSegment SISCI_FUNCTION(SCIDisconnectSegment)
#define SCIMapRemoteSegment SISCI_FUNCTION(SCIMapRemoteSegment)
#define SCIUnmapSegment SISCI_FUNCTION(SCIUnmapSegment)
#define SCIWaitForRemoteSegmentEvent SISCI_FUNCTION(SCIWaitForRemoteSegmentEvent)
#define SCIGetRemoteSegmentSize SISCI_FUNCTION(SCIGetRemoteSegmentSize)
#define SCIGetRemoteSegmentId SISCI_FUNCTION(SCIGetRemoteSegmentId)
#define SCIGetRemoteSegmentNodeId SISCI_FUNCTION(SCIGetRemoteSegmentNodeId)
#define SCIGetMapPointer SISCI_FUNCTION(SCIGetMapPointer)
#define SCIGetMapPhysAddr SISCI_FUNCTION(SCIGetMapPhysAddr)
#define SCICreateMapSequence SISCI_FUNCTION(SCICreateMapSequence)
#define SCIRemoveSequence SISCI_FUNCTION(SCIRemoveSequence)
#define SCIStartSequence SISCI_FUNCTION(SCIStartSequence)
#define SCICheckSequence SISCI_FUNCTION(SCICheckSequence)
#define SCIStoreBarrier SISCI_FUNCTION(SCIStoreBarrier)
#define SCIFlush SISCI_FUNCTION(SCIFlush)
#define SCIMemCpy SISCI_FUNCTION(SCIMemCpy)
#define SCIMemWrite SISCI_FUNCTION(SCIMemWrite)
#define SCICacheSync SISCI_FUNCTION(SCICacheSync)
#define SetSciMemCopyFunction SISCI_FUNCTION(SetSciMemCopyFunction)
#define GetSciMemCopyFunction SISCI_FUNCTION(GetSciMemCopyFunction)
#define SCICreateDMAQueue SISCI_FUNCTION(SCICreateDMAQueue)
#define SCIRemoveDMAQueue SISCI_FUNCTION(SCIRemoveDMAQueue)
#define SCIStartDmaTransfer SISCI_FUNCTION(SCIStartDmaTransfer)
#define SCIStartDmaTransferMem SISCI_FUNCTION(SCIStartDmaTransferMem)
#define SCIStartDmaTransferVec SISCI_FUNCTION(SCIStartDmaTransferVec)
#define SCIDMAQueueState SISCI_FUNCTION(SCIDMAQueueState)
#define SCIWaitForDMAQueue SISCI_FUNCTION(SCIWaitForDMAQueue)
#define SCIAbortDMAQueue SISCI_FUNCTION(SCIAbortDMAQueue)
#define SCIRequestDMAChannel SISCI_FUNCTION(SCIRequestDMAChannel)
#define SCIAssignDMAChannel SISCI_FUNCTION(SCIAssignDMAChannel)
#define SCIPrepareLocalSegmentForDMA SISCI_FUNCTION(SCIPrepareLocalSegmentForDMA)
#define SCIPrepareRemoteSegmentForDMA SISCI_FUNCTION(SCIPrepareRemoteSegmentForDMA)
#define SCIUnprepareLocalSegmentForDMA SISCI_FUNCTION(SCIUnprepareLocalSegmentForDMA)
#define SCIUnprepareRemoteSegmentForDMA SISCI_FUNCTION(SCIUnprepareRemoteSegmentForDMA)
#define SCIReturnDMAChannel SISCI_FUNCTION(SCIReturnDMAChannel)
#define SCICreateInterrupt SISCI_FUNCTION(SCICreateInterrupt)
#define SCIRemoveInterrupt SISCI_FUNCTION(SCIRemoveInterrupt)
#define SCIWaitForInterrupt SISCI_FUNCTION(SCIWaitForInterrupt)
#define SCIConnectInterrupt SISCI_FUNCTION(SCIConnectInterrupt)
#define SCIDisconnectInterrupt SISCI_FUNCTION(SCIDisconnectInterrupt)
#define SCITriggerInterrupt SISCI_FUNCTION(SCITriggerInterrupt)
#define SCICreateDataInterrupt SISCI_FUNCTION(SCICreateDataInterrupt)
#define SCIRemoveDataInterrupt SISCI_FUNCTION(SCIRemoveDataInterrupt)
#define SCIWaitForDataInterrupt SISCI_FUNCTION(SCIWaitForDataInterrupt)
#define SCIConnectDataInterrupt SISCI_FUNCTION(SCIConnectDataInterrupt)
#define SCIDisconnectDataInterrupt SISCI_FUNCTION(SCIDisconnectDataInterrupt)
#define SCITriggerDataInterrupt SISCI_FUNCTION(SCITriggerDataInterrupt)

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

void SISCI_FUNCTION(SCIInitialize)(unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCITerminate)(void);
void SISCI_FUNCTION(SCIOpen)(sci_desc_t* sd, unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIClose)(sci_desc_t sd, unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIGetLocalNodeId)(unsigned int adapter, unsigned int* nodeId,
                                       unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIGetNodeIdByAdapterName)(char* name, dis_nodeId_list_t* nodeIds,
                                               dis_virt_adapter_t* type, unsigned int flags,
                                               sci_error_t* error);
int SISCI_FUNCTION(SCIProbeNode)(sci_desc_t sd, unsigned int adapter, unsigned int nodeId,
                                 unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIQuery)(unsigned int command, void* data, unsigned int flags,
                              sci_error_t* error);
const char* SISCI_FUNCTION(SCIGetErrorString)(sci_error_t code);

void SISCI_FUNCTION(SCICreateSegment)(sci_desc_t sd, sci_local_segment_t* segment, unsigned int id,
                                      size_t size, sci_cb_local_segment_t callback, void* arg,
                                      unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIPrepareSegment)(sci_local_segment_t segment, unsigned int adapter,
                                       unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCISetSegmentAvailable)(sci_local_segment_t segment, unsigned int adapter,
                                            unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCISetSegmentUnavailable)(sci_local_segment_t segment, unsigned int adapter,
                                              unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIRemoveSegment)(sci_local_segment_t segment, unsigned int flags,
                                      sci_error_t* error);
void* SISCI_FUNCTION(SCIMapLocalSegment)(sci_local_segment_t segment, sci_map_t* map, size_t offset,
                                         size_t size, void* address, unsigned int flags,
                                         sci_error_t* error);
void SISCI_FUNCTION(SCIRegisterSegmentMemory)(void* address, size_t size,
                                              sci_local_segment_t segment, unsigned int flags,
                                              sci_error_t* error);
void SISCI_FUNCTION(SCIAttachPhysicalMemory)(sci_ioaddr_t ioaddress, void* address,
                                             unsigned int busNo, size_t size,
                                             sci_local_segment_t segment, unsigned int flags,
                                             sci_error_t* error);
void SISCI_FUNCTION(SCIShareSegment)(sci_local_segment_t segment, unsigned int flags,
                                     sci_error_t* error);
void SISCI_FUNCTION(SCIAttachLocalSegment)(sci_desc_t sd, sci_local_segment_t* segment,
                                           unsigned int id, size_t* size,
                                           sci_cb_local_segment_t callback, void* arg,
                                           unsigned int flags, sci_error_t* error);
sci_segment_cb_reason_t SISCI_FUNCTION(SCIWaitForLocalSegmentEvent)(
    sci_local_segment_t segment, unsigned int* nodeId, unsigned int* adapter, unsigned int timeout,
    unsigned int flags, sci_error_t* error);
unsigned int SISCI_FUNCTION(SCIGetLocalSegmentId)(sci_local_segment_t segment);
size_t SISCI_FUNCTION(SCIGetLocalSegmentSize)(sci_local_segment_t segment);

void SISCI_FUNCTION(SCIConnectSegment)(sci_desc_t sd, sci_remote_segment_t* segment,
                                       unsigned int nodeId, unsigned int id, unsigned int adapter,
                                       sci_cb_remote_segment_t callback, void* arg,
                                       unsigned int timeout, unsigned int flags,
                                       sci_error_t* error);
void SISCI_FUNCTION(SCIDisconnectSegment)(sci_remote_segment_t segment, unsigned int flags,
                                          sci_error_t* error);
volatile void* SISCI_FUNCTION(SCIMapRemoteSegment)(sci_remote_segment_t segment, sci_map_t* map,
                                                   size_t offset, size_t size, void* address,
                                                   unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIUnmapSegment)(sci_map_t map, unsigned int flags, sci_error_t* error);
sci_segment_cb_reason_t SISCI_FUNCTION(SCIWaitForRemoteSegmentEvent)(sci_remote_segment_t segment,
                                                                     sci_error_t* status,
                                                                     unsigned int timeout,
                                                                     unsigned int flags,
                                                                     sci_error_t* error);
size_t SISCI_FUNCTION(SCIGetRemoteSegmentSize)(sci_remote_segment_t segment);
unsigned int SISCI_FUNCTION(SCIGetRemoteSegmentId)(sci_remote_segment_t segment);
unsigned int SISCI_FUNCTION(SCIGetRemoteSegmentNodeId)(sci_remote_segment_t segment);
void* SISCI_FUNCTION(SCIGetMapPointer)(sci_map_t map);
sci_ioaddr_t SISCI_FUNCTION(SCIGetMapPhysAddr)(sci_map_t map);

void SISCI_FUNCTION(SCICreateMapSequence)(sci_map_t map, sci_sequence_t* sequence,
                                          unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIRemoveSequence)(sci_sequence_t sequence, unsigned int flags,
                                       sci_error_t* error);
sci_sequence_status_t SISCI_FUNCTION(SCIStartSequence)(sci_sequence_t sequence, unsigned int flags,
                                                       sci_error_t* error);
sci_sequence_status_t SISCI_FUNCTION(SCICheckSequence)(sci_sequence_t sequence, unsigned int flags,
                                                       sci_error_t* error);
void SISCI_FUNCTION(SCIStoreBarrier)(sci_sequence_t sequence, unsigned int flags);
void SISCI_FUNCTION(SCIFlush)(sci_sequence_t sequence, unsigned int flags);
void SISCI_FUNCTION(SCIMemCpy)(sci_sequence_t sequence, void* memory, sci_map_t map, size_t offset,
                               size_t size, unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIMemWrite)(void* memory, volatile void* remote, size_t size,
                                 unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCICacheSync)(sci_map_t map, void* address, size_t length, unsigned int flags,
                                  sci_error_t* error);
/* By which of its functions SCIMemCpy copies. */
void SISCI_FUNCTION(SetSciMemCopyFunction)(unsigned int function);
unsigned int SISCI_FUNCTION(GetSciMemCopyFunction)(void);

void SISCI_FUNCTION(SCICreateDMAQueue)(sci_desc_t sd, sci_dma_queue_t* queue, unsigned int adapter,
                                       unsigned int maxEntries, unsigned int flags,
                                       sci_error_t* error);
void SISCI_FUNCTION(SCIRemoveDMAQueue)(sci_dma_queue_t queue, unsigned int flags,
                                       sci_error_t* error);
void SISCI_FUNCTION(SCIStartDmaTransfer)(sci_dma_queue_t queue, sci_local_segment_t local,
                                         sci_remote_segment_t remote, size_t localOffset,
                                         size_t size, size_t remoteOffset, sci_cb_dma_t callback,
                                         void* arg, unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIStartDmaTransferMem)(sci_dma_queue_t queue, void* localAddress,
                                            sci_remote_segment_t remote, size_t size,
                                            size_t remoteOffset, sci_cb_dma_t callback, void* arg,
                                            unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIStartDmaTransferVec)(sci_dma_queue_t queue, sci_local_segment_t local,
                                            sci_remote_segment_t remote, size_t count,
                                            dis_dma_vec_t* vector, sci_cb_dma_t callback, void* arg,
                                            unsigned int flags, sci_error_t* error);
sci_dma_queue_state_t SISCI_FUNCTION(SCIDMAQueueState)(sci_dma_queue_t queue);
sci_dma_queue_state_t SISCI_FUNCTION(SCIWaitForDMAQueue)(sci_dma_queue_t queue,
                                                         unsigned int timeout, unsigned int flags,
                                                         sci_error_t* error);
void SISCI_FUNCTION(SCIAbortDMAQueue)(sci_dma_queue_t queue, unsigned int flags,
                                      sci_error_t* error);
void SISCI_FUNCTION(SCIRequestDMAChannel)(sci_desc_t sd, sci_dma_channel_t* channel,
                                          unsigned int adapter, sci_dma_type_t type,
                                          unsigned int channelId, unsigned int flags,
                                          sci_error_t* error);
void SISCI_FUNCTION(SCIAssignDMAChannel)(sci_dma_channel_t channel, sci_dma_queue_t queue,
                                         unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIPrepareLocalSegmentForDMA)(sci_dma_channel_t channel,
                                                  sci_local_segment_t segment, unsigned int flags,
                                                  sci_error_t* error);
void SISCI_FUNCTION(SCIPrepareRemoteSegmentForDMA)(sci_dma_channel_t channel,
                                                   sci_remote_segment_t segment, unsigned int flags,
                                                   sci_error_t* error);
void SISCI_FUNCTION(SCIUnprepareLocalSegmentForDMA)(sci_dma_channel_t channel,
                                                    sci_local_segment_t segment, unsigned int flags,
                                                    sci_error_t* error);
void SISCI_FUNCTION(SCIUnprepareRemoteSegmentForDMA)(sci_dma_channel_t channel,
                                                     sci_remote_segment_t segment,
                                                     unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIReturnDMAChannel)(sci_dma_channel_t channel, sci_error_t* error);

void SISCI_FUNCTION(SCICreateInterrupt)(sci_desc_t sd, sci_local_interrupt_t* interrupt,
                                        unsigned int adapter, unsigned int* number,
                                        sci_cb_interrupt_t callback, void* arg, unsigned int flags,
                                        sci_error_t* error);
void SISCI_FUNCTION(SCIRemoveInterrupt)(sci_local_interrupt_t interrupt, unsigned int flags,
                                        sci_error_t* error);
void SISCI_FUNCTION(SCIWaitForInterrupt)(sci_local_interrupt_t interrupt, unsigned int timeout,
                                         unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIConnectInterrupt)(sci_desc_t sd, sci_remote_interrupt_t* interrupt,
                                         unsigned int nodeId, unsigned int adapter,
                                         unsigned int number, unsigned int timeout,
                                         unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIDisconnectInterrupt)(sci_remote_interrupt_t interrupt, unsigned int flags,
                                            sci_error_t* error);
void SISCI_FUNCTION(SCITriggerInterrupt)(sci_remote_interrupt_t interrupt, unsigned int flags,
                                         sci_error_t* error);
void SISCI_FUNCTION(SCICreateDataInterrupt)(sci_desc_t sd, sci_local_data_interrupt_t* interrupt,
                                            unsigned int adapter, unsigned int* number,
                                            sci_cb_data_interrupt_t callback, void* arg,
                                            unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIRemoveDataInterrupt)(sci_local_data_interrupt_t interrupt,
                                            unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIWaitForDataInterrupt)(sci_local_data_interrupt_t interrupt, void* data,
                                             unsigned int* length, unsigned int timeout,
                                             unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIConnectDataInterrupt)(sci_desc_t sd, sci_remote_data_interrupt_t* interrupt,
                                             unsigned int nodeId, unsigned int adapter,
                                             unsigned int number, unsigned int timeout,
                                             unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCIDisconnectDataInterrupt)(sci_remote_data_interrupt_t interrupt,
                                                unsigned int flags, sci_error_t* error);
void SISCI_FUNCTION(SCITriggerDataInterrupt)(sci_remote_data_interrupt_t interrupt, void* data,
                                             unsigned int length, unsigned int flags,
                                             sci_error_t* error);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
