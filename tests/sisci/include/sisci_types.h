// Types of the API.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dis_types.h"
#include "sisci_error.h"

typedef struct sci_desc* sci_desc_t;
typedef struct sci_local_segment* sci_local_segment_t;
typedef struct sci_remote_segment* sci_remote_segment_t;
typedef struct sci_map* sci_map_t;
typedef struct sci_sequence* sci_sequence_t;
typedef struct sci_dma_queue* sci_dma_queue_t;
typedef struct sci_dma_channel* sci_dma_channel_t;
typedef struct sci_local_interrupt* sci_local_interrupt_t;
typedef struct sci_remote_interrupt* sci_remote_interrupt_t;
typedef struct sci_local_data_interrupt* sci_local_data_interrupt_t;
typedef struct sci_remote_data_interrupt* sci_remote_data_interrupt_t;

typedef uint64_t sci_ioaddr_t;

typedef struct {
  unsigned short nodeId;
  unsigned short offsHi;
  unsigned int offsLo;
} sci_address_t;

typedef enum {
  SCI_CB_CONNECT = 1,
  SCI_CB_DISCONNECT,
  SCI_CB_NOT_OPERATIONAL,
  SCI_CB_OPERATIONAL,
  SCI_CB_LOST
} sci_segment_cb_reason_t;

typedef enum {
  SCI_DMAQUEUE_IDLE,
  SCI_DMAQUEUE_GATHER,
  SCI_DMAQUEUE_POSTED,
  SCI_DMAQUEUE_DONE,
  SCI_DMAQUEUE_ABORTED,
  SCI_DMAQUEUE_ERROR
} sci_dma_queue_state_t;

typedef enum {
  SCI_SEQ_OK,
  SCI_SEQ_RETRIABLE,
  SCI_SEQ_NOT_RETRIABLE,
  SCI_SEQ_PENDING
} sci_sequence_status_t;

typedef enum { SCI_CALLBACK_CANCEL = 1, SCI_CALLBACK_CONTINUE } sci_callback_action_t;

typedef enum {
  SCI_DMA_TYPE_DONTCARE = 1,
  SCI_DMA_TYPE_ADAPTER,
  SCI_DMA_TYPE_GLOBAL,
  SCI_DMA_TYPE_SYSTEM,
  SCI_DMA_TYPE_TRANSPARENT
} sci_dma_type_t;

typedef struct {
  char* str;
  unsigned int length;
} sci_query_string_t;

typedef struct {
  unsigned int localAdapterNo;
  unsigned int portNo;
  unsigned int subcommand;
  void* data;
} sci_query_adapter_t;

typedef struct {
  unsigned int subcommand;
  void* data;
} sci_query_system_t;

typedef struct {
  unsigned int localAdapterNo;
  unsigned int subcommand;
  void* data;
} sci_query_dma_t;

typedef struct {
  unsigned int num_channels;
  unsigned int max_transfer_size;
  unsigned int max_vector_length;
  unsigned int support_mem2io;
  unsigned int support_io2mem;
  unsigned int support_io2io;
  unsigned int min_align_bytes;
  unsigned int suggested_align_bytes;
} sci_dma_capabilities_t;

typedef struct {
  sci_local_segment_t segment;
  unsigned int subcommand;
  union {
    sci_ioaddr_t ioaddr;
  } data;
} sci_query_local_segment_t;

typedef struct {
  sci_remote_segment_t segment;
  unsigned int subcommand;
  union {
    sci_ioaddr_t ioaddr;
  } data;
} sci_query_remote_segment_t;

typedef struct {
  sci_map_t map;
  unsigned int subcommand;
  uint64_t data;
} sci_query_map_t;

typedef struct {
  unsigned int size;
  unsigned int local_offset;
  unsigned int remote_offset;
  unsigned int flags;
} dis_dma_vec_t;

typedef sci_callback_action_t (*sci_cb_local_segment_t)(void* arg, sci_local_segment_t segment,
                                                        sci_segment_cb_reason_t reason,
                                                        unsigned int nodeId,
                                                        unsigned int localAdapterNo,
                                                        sci_error_t error);
typedef sci_callback_action_t (*sci_cb_remote_segment_t)(void* arg, sci_remote_segment_t segment,
                                                         sci_segment_cb_reason_t reason,
                                                         sci_error_t status);
typedef sci_callback_action_t (*sci_cb_dma_t)(void* arg, sci_dma_queue_t queue, sci_error_t status);
typedef sci_callback_action_t (*sci_cb_interrupt_t)(void* arg, sci_local_interrupt_t interrupt,
                                                    sci_error_t status);
typedef sci_callback_action_t (*sci_cb_data_interrupt_t)(void* arg,
                                                         sci_local_data_interrupt_t interrupt,
                                                         void* data, unsigned int length,
                                                         sci_error_t status);
