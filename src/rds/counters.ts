/**
 * What an RDS node counts. The first have the kernel's names, in its order (`rds-info -c`; rds_stat_names of net/rds/stats.c,
 * rds_tcp_stat_names of net/rds/tcp_stats.c), so that scripts find them. Some of them count what cannot happen here, as they are about InfiniBand,
 * locks or pages, and stay 0. The others are ours.
 */
export interface RdsCounters {
  conn_reset: number;
  recv_drop_bad_checksum: number;
  recv_drop_old_seq: number;
  recv_drop_no_sock: number;
  recv_drop_dead_sock: number;
  recv_deliver_raced: number;
  recv_delivered: number;
  recv_queued: number;
  recv_immediate_retry: number;
  recv_delayed_retry: number;
  recv_ack_required: number;
  recv_rdma_bytes: number;
  recv_ping: number;
  send_queue_empty: number;
  send_queue_full: number;
  send_lock_contention: number;
  send_lock_queue_raced: number;
  send_immediate_retry: number;
  send_delayed_retry: number;
  send_drop_acked: number;
  send_ack_required: number;
  send_queued: number;
  send_rdma: number;
  send_rdma_bytes: number;
  send_pong: number;
  page_remainder_hit: number;
  page_remainder_miss: number;
  copy_to_user: number;
  copy_from_user: number;
  cong_update_queued: number;
  cong_update_received: number;
  cong_send_error: number;
  cong_send_blocked: number;
  recv_bytes_added_to_sock: number;
  recv_bytes_freed_fromsock: number;
  send_stuck_rm: number;
  mprds_catchup_tx0_retries: number;
  tcp_data_ready_calls: number;
  tcp_write_space_calls: number;
  tcp_sndbuf_full: number;
  tcp_connect_raced: number;
  tcp_listen_closed_stale: number;

  /** Messages sent again after a connection was lost. */
  send_retransmitted: number;
  /** Messages of unknown fate that were given up because the peer restarted. */
  send_drop_generation: number;
  /** Messages withdrawn: their socket closed, or the program cancelled them. */
  send_cancelled: number;
  /** Messages given up because the program detached or resized the memory it had lent. */
  send_memory_taken: number;
  /** Pongs not sent because the peer does not read. */
  pong_drop_full: number;
  /** Connections dropped because the peer announced more than 1 MiB. */
  recv_oversized: number;
  /** Messages cut short by the end of a connection (the peer sends them again). */
  recv_truncated: number;
  /** Congestion maps of a wrong length, ignored. */
  cong_bad_length: number;
  /** Headers from port 0 to port 0, ignored. */
  recv_ignored: number;
  /** Peers that came back with another generation number. */
  peer_restarts: number;
  /** Times a peer's lane was not read because too much was held for it. */
  recv_held_back: number;
  /** Messages held until a probe told whether they had come before. */
  recv_held_unclear: number;
  /** Connections given up because the peer never said anything on them. */
  conn_silent: number;
  /** Times that no connection could be accepted, mostly for want of descriptors. */
  accept_failed: number;
  /** Inbound connections refused before they came to a peer, in all; and for which reason (rds/admission.ts). */
  accept_refused: number;
  /** Their address is not in `allow`. */
  accept_refused_allow: number;
  /** limits.connections were open. */
  accept_refused_connections: number;
  /** limits.peers were known, and none could be forgotten. */
  accept_refused_peers: number;
  /** They came from an address of this process, but not from its node there. */
  accept_refused_local: number;
  /** Too many connections of their address waited for a lane. */
  accept_refused_waiting: number;
  /** The node was closing. */
  accept_refused_closing: number;
  /** Inbound connections closed because this side dials. */
  accept_pokes: number;
  /** Inbound connections that replaced one that looked alive. */
  accept_replaced: number;
  dial_failed: number;
  /** Peers forgotten to make room for others. */
  peers_forgotten: number;
  /** Messages delivered inside this process. */
  local_delivered: number;
}

const none: RdsCounters = {
  conn_reset: 0,
  recv_drop_bad_checksum: 0,
  recv_drop_old_seq: 0,
  recv_drop_no_sock: 0,
  recv_drop_dead_sock: 0,
  recv_deliver_raced: 0,
  recv_delivered: 0,
  recv_queued: 0,
  recv_immediate_retry: 0,
  recv_delayed_retry: 0,
  recv_ack_required: 0,
  recv_rdma_bytes: 0,
  recv_ping: 0,
  send_queue_empty: 0,
  send_queue_full: 0,
  send_lock_contention: 0,
  send_lock_queue_raced: 0,
  send_immediate_retry: 0,
  send_delayed_retry: 0,
  send_drop_acked: 0,
  send_ack_required: 0,
  send_queued: 0,
  send_rdma: 0,
  send_rdma_bytes: 0,
  send_pong: 0,
  page_remainder_hit: 0,
  page_remainder_miss: 0,
  copy_to_user: 0,
  copy_from_user: 0,
  cong_update_queued: 0,
  cong_update_received: 0,
  cong_send_error: 0,
  cong_send_blocked: 0,
  recv_bytes_added_to_sock: 0,
  recv_bytes_freed_fromsock: 0,
  send_stuck_rm: 0,
  mprds_catchup_tx0_retries: 0,
  tcp_data_ready_calls: 0,
  tcp_write_space_calls: 0,
  tcp_sndbuf_full: 0,
  tcp_connect_raced: 0,
  tcp_listen_closed_stale: 0,
  send_retransmitted: 0,
  send_drop_generation: 0,
  send_cancelled: 0,
  send_memory_taken: 0,
  pong_drop_full: 0,
  recv_oversized: 0,
  recv_truncated: 0,
  cong_bad_length: 0,
  recv_ignored: 0,
  peer_restarts: 0,
  recv_held_back: 0,
  recv_held_unclear: 0,
  conn_silent: 0,
  accept_failed: 0,
  accept_refused: 0,
  accept_refused_allow: 0,
  accept_refused_connections: 0,
  accept_refused_peers: 0,
  accept_refused_local: 0,
  accept_refused_waiting: 0,
  accept_refused_closing: 0,
  accept_pokes: 0,
  accept_replaced: 0,
  dial_failed: 0,
  peers_forgotten: 0,
  local_delivered: 0,
};

export function rdsCounters(): RdsCounters {
  return { ...none };
}
