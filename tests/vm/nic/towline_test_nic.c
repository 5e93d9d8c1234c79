// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A pair of network devices, tnic0 and tnic1, wired to each other, for a guest without IOMMU that is thrown away.
 *
 * It has what receiving into device memory asks of a NIC: receive queues whose memory can be replaced while it runs,
 * headers split from payload, rules that send a connection's packets to a queue, and a table that spreads the rest. A
 * packet's payload is copied into pages of the queue's pool, wherever these lie.
 */
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/platform_device.h>
#include <linux/rtnetlink.h>
#include <linux/tcp.h>
#include <net/netdev_queues.h>
#include <net/netdev_rx_queue.h>
#include <net/page_pool/helpers.h>

#define QUEUES 4
#define RULES 64
#define SPREAD 16
#define LONGEST_QUEUE 2048

struct nic_queue {
  struct napi_struct napi;
  struct sk_buff_head arrived;
  struct page_pool* pool;
  struct net_device* dev;
  u64 fragments;
  u64 drops;
};

struct nic {
  struct net_device* peer;
  struct nic_queue queues[QUEUES];
  struct ethtool_rx_flow_spec rules[RULES]; /* flow_type 0: a free place */
  u32 spread[SPREAD];
  u8 split;
  u32 threshold;
};

struct nic_queue_memory {
  struct page_pool* pool;
};

struct nic_flow {
  int header_bytes; /* up to the payload; 0: no TCP */
  __be32 source4, destination4;
  struct in6_addr source6, destination6;
  __be16 source_port, destination_port;
  bool six;
};

static struct platform_device* nic_platform;
static struct net_device* nic_devices[2];

/* ---- which queue */

static bool nic_read_flow(struct sk_buff* skb, struct nic_flow* flow) {
  struct ethhdr ethernet;
  struct tcphdr tcp;
  int at = ETH_HLEN;
  u8 protocol;

  memset(flow, 0, sizeof(*flow));
  if (skb_copy_bits(skb, 0, &ethernet, sizeof(ethernet))) return false;
  if (ethernet.h_proto == htons(ETH_P_IP)) {
    struct iphdr ip;

    if (skb_copy_bits(skb, at, &ip, sizeof(ip))) return false;
    at += ip.ihl * 4;
    protocol = ip.protocol;
    flow->source4 = ip.saddr;
    flow->destination4 = ip.daddr;
  } else if (ethernet.h_proto == htons(ETH_P_IPV6)) {
    struct ipv6hdr ip;

    if (skb_copy_bits(skb, at, &ip, sizeof(ip))) return false;
    at += sizeof(ip);
    protocol = ip.nexthdr;
    flow->six = true;
    flow->source6 = ip.saddr;
    flow->destination6 = ip.daddr;
  } else {
    return false;
  }
  if (protocol != IPPROTO_TCP || skb_copy_bits(skb, at, &tcp, sizeof(tcp))) return false;
  flow->header_bytes = at + tcp.doff * 4;
  flow->source_port = tcp.source;
  flow->destination_port = tcp.dest;
  return true;
}

static bool nic_matches(const struct ethtool_rx_flow_spec* rule, const struct nic_flow* flow) {
  if (rule->flow_type == TCP_V4_FLOW && !flow->six) {
    const struct ethtool_tcpip4_spec *is = &rule->h_u.tcp_ip4_spec, *mask = &rule->m_u.tcp_ip4_spec;

    return !((is->ip4src ^ flow->source4) & mask->ip4src) &&
           !((is->ip4dst ^ flow->destination4) & mask->ip4dst) &&
           !((is->psrc ^ flow->source_port) & mask->psrc) &&
           !((is->pdst ^ flow->destination_port) & mask->pdst);
  }
  if (rule->flow_type == TCP_V6_FLOW && flow->six) {
    const struct ethtool_tcpip6_spec *is = &rule->h_u.tcp_ip6_spec, *mask = &rule->m_u.tcp_ip6_spec;
    int i;

    for (i = 0; i < 4; i++)
      if (((is->ip6src[i] ^ flow->source6.s6_addr32[i]) & mask->ip6src[i]) ||
          ((is->ip6dst[i] ^ flow->destination6.s6_addr32[i]) & mask->ip6dst[i]))
        return false;
    return !((is->psrc ^ flow->source_port) & mask->psrc) &&
           !((is->pdst ^ flow->destination_port) & mask->pdst);
  }
  return false;
}

static int nic_choose_queue(struct nic* nic, const struct nic_flow* flow) {
  int i;

  for (i = 0; i < RULES; i++)
    if (READ_ONCE(nic->rules[i].flow_type) && nic_matches(&nic->rules[i], flow))
      return nic->rules[i].ring_cookie % QUEUES;
  return READ_ONCE(nic->spread[ntohs(flow->source_port) % SPREAD]) % QUEUES;
}

/* ---- packets */

static netdev_tx_t nic_send(struct sk_buff* skb, struct net_device* dev) {
  struct nic *here = netdev_priv(dev), *there = netdev_priv(here->peer);
  struct nic_queue* queue = &there->queues[0];
  unsigned int bytes = skb->len;
  struct nic_flow flow;

  *(int*)skb->cb = 0;
  if (nic_read_flow(skb, &flow)) {
    queue = &there->queues[nic_choose_queue(there, &flow)];
    *(int*)skb->cb = flow.header_bytes;
  }
  if (!netif_running(here->peer) || skb_queue_len(&queue->arrived) > LONGEST_QUEUE) {
    dev_kfree_skb(skb);
    dev->stats.tx_dropped++;
    return NETDEV_TX_OK;
  }
  skb_orphan(skb);
  skb_dst_drop(skb);
  nf_reset_ct(skb);
  skb_queue_tail(&queue->arrived, skb);
  dev->stats.tx_packets++;
  dev->stats.tx_bytes += bytes;
  local_bh_disable();
  napi_schedule(&queue->napi);
  local_bh_enable();
  return NETDEV_TX_OK;
}

/* Also from device memory, which the kernel itself can't read: here it is memory like any other. */
static void nic_copy(const struct sk_buff* skb, int from, void* to, int bytes) {
  int begin = skb_headlen(skb), i;

  if (from < begin) {
    int here = min(bytes, begin - from);

    memcpy(to, skb->data + from, here);
    to += here;
    from += here;
    bytes -= here;
  }
  for (i = 0; i < skb_shinfo(skb)->nr_frags && bytes > 0; i++) {
    const skb_frag_t* fragment = &skb_shinfo(skb)->frags[i];
    int size = skb_frag_size(fragment);

    if (from < begin + size) {
      int at = from - begin, here = min(bytes, size - at);

      if (skb_frag_is_net_iov(fragment))
        memcpy(to, phys_to_virt(skb_frag_dma_map(&nic_platform->dev, fragment, at)), here);
      else
        memcpy(to, skb_frag_address(fragment) + at, here);
      to += here;
      from += here;
      bytes -= here;
    }
    begin += size;
  }
}

static struct sk_buff* nic_receive(struct nic_queue* queue, const struct sk_buff* skb, int header_bytes) {
  int at = header_bytes, i = 0, bytes = skb->len;
  struct sk_buff* result = napi_alloc_skb(&queue->napi, header_bytes);

  if (!result) return NULL;
  nic_copy(skb, 0, skb_put(result, header_bytes), header_bytes);
  skb_mark_for_recycle(result);
  while (at < bytes) {
    int here = min_t(int, bytes - at, PAGE_SIZE);
    netmem_ref page = i < MAX_SKB_FRAGS ? page_pool_alloc_netmems(queue->pool, GFP_ATOMIC | __GFP_NOWARN) : 0;

    if (!page) {
      dev_kfree_skb_any(result);
      return NULL;
    }
    /* Without IOMMU a bus address is a physical one. */
    nic_copy(skb, at, phys_to_virt(page_pool_get_dma_addr_netmem(page)), here);
    skb_add_rx_frag_netmem(result, i++, page, 0, here, PAGE_SIZE);
    at += here;
    queue->fragments++;
  }
  if (skb_is_gso(skb)) {
    skb_shinfo(result)->gso_size = skb_shinfo(skb)->gso_size;
    skb_shinfo(result)->gso_segs = skb_shinfo(skb)->gso_segs;
    skb_shinfo(result)->gso_type = skb_shinfo(skb)->gso_type;
  }
  return result;
}

static int nic_poll(struct napi_struct* napi, int budget) {
  struct nic_queue* queue = container_of(napi, struct nic_queue, napi);
  struct net_device* dev = queue->dev;
  struct nic* nic = netdev_priv(dev);
  struct sk_buff* skb;
  int done = 0;

  while (done < budget && (skb = skb_dequeue(&queue->arrived))) {
    int header_bytes = *(int*)skb->cb;

    done++;
    if (header_bytes && skb->len > header_bytes) {
      struct sk_buff* received = nic_receive(queue, skb, header_bytes);

      dev_kfree_skb_any(skb);
      if (!received) {
        queue->drops++;
        dev->stats.rx_dropped++;
        continue;
      }
      skb = received;
    }
    dev->stats.rx_packets++;
    dev->stats.rx_bytes += skb->len;
    memset(skb->cb, 0, sizeof(skb->cb));
    skb->dev = dev;
    skb->protocol = eth_type_trans(skb, dev);
    skb->ip_summed = CHECKSUM_UNNECESSARY;
    skb_record_rx_queue(skb, queue - nic->queues);
    if (skb_is_gso(skb))
      netif_receive_skb(skb);
    else
      napi_gro_receive(napi, skb);
  }
  if (done < budget) {
    napi_complete_done(napi, done);
    if (!skb_queue_empty(&queue->arrived)) napi_schedule(napi);
  }
  return done;
}

/* ---- queues, whose memory can be replaced */

static int nic_queue_alloc(struct net_device* dev, struct netdev_queue_config* config, void* memory,
                           int index) {
  struct page_pool_params params = {
      .flags = PP_FLAG_DMA_MAP | PP_FLAG_DMA_SYNC_DEV | PP_FLAG_ALLOW_UNREADABLE_NETMEM,
      .pool_size = 256,
      .nid = NUMA_NO_NODE,
      .dev = &nic_platform->dev,
      .dma_dir = DMA_FROM_DEVICE,
      .max_len = PAGE_SIZE,
      .netdev = dev,
      .queue_idx = index,
  };
  struct page_pool* pool = page_pool_create(&params);

  if (IS_ERR(pool)) return PTR_ERR(pool);
  ((struct nic_queue_memory*)memory)->pool = pool;
  return 0;
}

static void nic_queue_free(struct net_device* dev, void* memory) {
  struct nic_queue_memory* mine = memory;

  if (mine->pool) page_pool_destroy(mine->pool);
  mine->pool = NULL;
}

static int nic_queue_start(struct net_device* dev, struct netdev_queue_config* config, void* memory,
                           int index) {
  struct nic_queue* queue = &((struct nic*)netdev_priv(dev))->queues[index];

  queue->pool = ((struct nic_queue_memory*)memory)->pool;
  napi_enable_locked(&queue->napi);
  local_bh_disable();
  napi_schedule(&queue->napi);
  local_bh_enable();
  return 0;
}

static int nic_queue_stop(struct net_device* dev, void* memory, int index) {
  struct nic_queue* queue = &((struct nic*)netdev_priv(dev))->queues[index];

  napi_disable_locked(&queue->napi);
  ((struct nic_queue_memory*)memory)->pool = queue->pool;
  queue->pool = NULL;
  return 0;
}

static const struct netdev_queue_mgmt_ops nic_queue_ops = {
    .ndo_queue_mem_size = sizeof(struct nic_queue_memory),
    .ndo_queue_mem_alloc = nic_queue_alloc,
    .ndo_queue_mem_free = nic_queue_free,
    .ndo_queue_start = nic_queue_start,
    .ndo_queue_stop = nic_queue_stop,
};

static int nic_stop(struct net_device* dev) {
  struct nic* nic = netdev_priv(dev);
  int i;

  netif_tx_stop_all_queues(dev);
  for (i = 0; i < QUEUES; i++) {
    struct nic_queue_memory memory = {};

    if (!nic->queues[i].pool) continue;
    nic_queue_stop(dev, &memory, i);
    nic_queue_free(dev, &memory);
    skb_queue_purge(&nic->queues[i].arrived);
    netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_RX, NULL);
  }
  return 0;
}

static int nic_open(struct net_device* dev) {
  struct nic* nic = netdev_priv(dev);
  int i, error;

  for (i = 0; i < QUEUES; i++) {
    struct nic_queue_memory memory = {};

    error = nic_queue_alloc(dev, NULL, &memory, i);
    if (error) {
      nic_stop(dev);
      return error;
    }
    nic_queue_start(dev, NULL, &memory, i);
    netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_RX, &nic->queues[i].napi);
  }
  netif_carrier_on(dev);
  netif_tx_start_all_queues(dev);
  return 0;
}

static const struct net_device_ops nic_ops = {
    .ndo_start_xmit = nic_send,
    .ndo_open = nic_open,
    .ndo_stop = nic_stop,
    .ndo_set_mac_address = eth_mac_addr,
};

/* ---- ethtool */

static int nic_get_rules(struct net_device* dev, struct ethtool_rxnfc* call, u32* places) {
  struct nic* nic = netdev_priv(dev);
  u32 i, count = 0;

  switch (call->cmd) {
    case ETHTOOL_GRXRINGS:
      call->data = QUEUES;
      return 0;
    case ETHTOOL_GRXCLSRLCNT:
      for (i = 0; i < RULES; i++) count += !!nic->rules[i].flow_type;
      call->rule_cnt = count;
      call->data = RULES | RX_CLS_LOC_SPECIAL;
      return 0;
    case ETHTOOL_GRXCLSRULE:
      if (call->fs.location >= RULES || !nic->rules[call->fs.location].flow_type) return -ENOENT;
      call->fs = nic->rules[call->fs.location];
      return 0;
    case ETHTOOL_GRXCLSRLALL:
      for (i = 0; i < RULES && count < call->rule_cnt; i++)
        if (nic->rules[i].flow_type) places[count++] = i;
      call->rule_cnt = count;
      call->data = RULES;
      return 0;
  }
  return -EOPNOTSUPP;
}

static int nic_set_rules(struct net_device* dev, struct ethtool_rxnfc* call) {
  struct nic* nic = netdev_priv(dev);
  struct ethtool_rx_flow_spec* rule;
  u32 i;

  if (call->cmd == ETHTOOL_SRXCLSRLDEL) {
    if (call->fs.location >= RULES || !nic->rules[call->fs.location].flow_type) return -ENOENT;
    WRITE_ONCE(nic->rules[call->fs.location].flow_type, 0);
    return 0;
  }
  if (call->cmd != ETHTOOL_SRXCLSRLINS) return -EOPNOTSUPP;
  if (call->fs.ring_cookie >= QUEUES ||
      (call->fs.flow_type != TCP_V4_FLOW && call->fs.flow_type != TCP_V6_FLOW))
    return -EINVAL;
  if (call->fs.location & RX_CLS_LOC_SPECIAL) {
    for (i = 0; i < RULES && nic->rules[i].flow_type; i++)
      ;
    if (i == RULES) return -ENOSPC;
    call->fs.location = i;
  }
  if (call->fs.location >= RULES) return -EINVAL;
  rule = &nic->rules[call->fs.location];
  rule->h_u = call->fs.h_u;
  rule->m_u = call->fs.m_u;
  rule->ring_cookie = call->fs.ring_cookie;
  rule->location = call->fs.location;
  WRITE_ONCE(rule->flow_type, call->fs.flow_type);
  return 0;
}

static u32 nic_ring_count(struct net_device* dev) { return QUEUES; }

static u32 nic_spread_size(struct net_device* dev) { return SPREAD; }

static int nic_get_spread(struct net_device* dev, struct ethtool_rxfh_param* param) {
  param->hfunc = ETH_RSS_HASH_TOP;
  if (param->indir) memcpy(param->indir, ((struct nic*)netdev_priv(dev))->spread, sizeof(u32) * SPREAD);
  return 0;
}

static int nic_set_spread(struct net_device* dev, struct ethtool_rxfh_param* param,
                          struct netlink_ext_ack* extack) {
  if (param->indir) memcpy(((struct nic*)netdev_priv(dev))->spread, param->indir, sizeof(u32) * SPREAD);
  return 0;
}

static void nic_get_rings(struct net_device* dev, struct ethtool_ringparam* ring,
                          struct kernel_ethtool_ringparam* more, struct netlink_ext_ack* extack) {
  struct nic* nic = netdev_priv(dev);

  ring->rx_max_pending = ring->rx_pending = LONGEST_QUEUE;
  ring->tx_max_pending = ring->tx_pending = LONGEST_QUEUE;
  more->tcp_data_split = nic->split;
  more->hds_thresh = nic->threshold;
  more->hds_thresh_max = 1024;
}

static int nic_set_rings(struct net_device* dev, struct ethtool_ringparam* ring,
                         struct kernel_ethtool_ringparam* more, struct netlink_ext_ack* extack) {
  struct nic* nic = netdev_priv(dev);

  nic->split = more->tcp_data_split;
  nic->threshold = more->hds_thresh;
  return 0;
}

static int nic_counter_count(struct net_device* dev, int set) {
  return set == ETH_SS_STATS ? 3 * QUEUES : -EOPNOTSUPP;
}

static void nic_counter_names(struct net_device* dev, u32 set, u8* names) {
  int i;

  for (i = 0; i < QUEUES; i++) {
    ethtool_sprintf(&names, "queue%d_fragments", i);
    ethtool_sprintf(&names, "queue%d_drops", i);
    ethtool_sprintf(&names, "queue%d_device_memory", i);
  }
}

static void nic_counters(struct net_device* dev, struct ethtool_stats* stats, u64* values) {
  struct nic* nic = netdev_priv(dev);
  int i;

  for (i = 0; i < QUEUES; i++) {
    values[3 * i] = nic->queues[i].fragments;
    values[3 * i + 1] = nic->queues[i].drops;
    values[3 * i + 2] = netif_rxq_has_unreadable_mp(dev, i);
  }
}

static const struct ethtool_ops nic_ethtool_ops = {
    .supported_ring_params = ETHTOOL_RING_USE_TCP_DATA_SPLIT | ETHTOOL_RING_USE_HDS_THRS,
    .get_link = ethtool_op_get_link,
    .get_rxnfc = nic_get_rules,
    .set_rxnfc = nic_set_rules,
    .get_rx_ring_count = nic_ring_count,
    .get_rxfh_indir_size = nic_spread_size,
    .get_rxfh = nic_get_spread,
    .set_rxfh = nic_set_spread,
    .get_ringparam = nic_get_rings,
    .set_ringparam = nic_set_rings,
    .get_sset_count = nic_counter_count,
    .get_strings = nic_counter_names,
    .get_ethtool_stats = nic_counters,
};

/* ---- the pair */

static struct net_device* nic_make(int number) {
  struct net_device* dev = alloc_etherdev_mqs(sizeof(struct nic), 1, QUEUES);
  struct nic* nic;
  int i;

  if (!dev) return NULL;
  nic = netdev_priv(dev);
  snprintf(dev->name, sizeof(dev->name), "tnic%d", number);
  SET_NETDEV_DEV(dev, &nic_platform->dev);
  eth_hw_addr_random(dev);
  dev->netdev_ops = &nic_ops;
  dev->ethtool_ops = &nic_ethtool_ops;
  dev->queue_mgmt_ops = &nic_queue_ops;
  dev->max_mtu = 65535;
  dev->netmem_tx = NETMEM_TX_DMA;
  dev->features = dev->hw_features = NETIF_F_HW_CSUM | NETIF_F_SG | NETIF_F_RXCSUM | NETIF_F_GRO |
                                     NETIF_F_TSO | NETIF_F_TSO6 | NETIF_F_NTUPLE;
  for (i = 0; i < SPREAD; i++) nic->spread[i] = i % QUEUES;
  for (i = 0; i < QUEUES; i++) {
    skb_queue_head_init(&nic->queues[i].arrived);
    nic->queues[i].dev = dev;
    netif_napi_add(dev, &nic->queues[i].napi, nic_poll);
  }
  return dev;
}

static void nic_unload(void) {
  int i;

  for (i = 0; i < 2; i++) {
    if (!nic_devices[i]) continue;
    if (nic_devices[i]->reg_state == NETREG_REGISTERED) unregister_netdev(nic_devices[i]);
    free_netdev(nic_devices[i]);
    nic_devices[i] = NULL;
  }
  platform_device_unregister(nic_platform);
}

static int __init nic_load(void) {
  struct platform_device_info info = {
      .name = "towline_test_nic", .id = PLATFORM_DEVID_NONE, .dma_mask = DMA_BIT_MASK(64)};
  int i, error = -ENOMEM;

  nic_platform = platform_device_register_full(&info);
  if (IS_ERR(nic_platform)) return PTR_ERR(nic_platform);
  for (i = 0; i < 2; i++) {
    nic_devices[i] = nic_make(i);
    if (!nic_devices[i]) goto failed;
  }
  for (i = 0; i < 2; i++) {
    ((struct nic*)netdev_priv(nic_devices[i]))->peer = nic_devices[!i];
    error = register_netdev(nic_devices[i]);
    if (error) goto failed;
  }
  return 0;
failed:
  nic_unload();
  return error;
}

module_init(nic_load);
module_exit(nic_unload);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Towline's test NIC, which receives into device memory");
