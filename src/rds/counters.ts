/**
 * What an RDS node counts. Names follow the kernel's RDS counters (`rds-info -c`, net/rds/stats.c) where it has one;
 * ours come after the blank line.
 */
export interface RdsCounters {
  conn_reset: number;
  recv_drop_old_seq: number;
  recv_drop_no_sock: number;
  recv_delivered: number;
  recv_ping: number;
  send_queue_full: number;
  send_queued: number;
  send_pong: number;
  send_drop_acked: number;
  cong_update_queued: number;
  cong_update_received: number;
  cong_send_error: number;
  tcp_sndbuf_full: number;

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
  /** Inbound connections refused: over the limit, or from an address of this process. */
  accept_refused: number;
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

export function rdsCounters(): RdsCounters {
  return {
    conn_reset: 0,
    recv_drop_old_seq: 0,
    recv_drop_no_sock: 0,
    recv_delivered: 0,
    recv_ping: 0,
    send_queue_full: 0,
    send_queued: 0,
    send_pong: 0,
    send_drop_acked: 0,
    cong_update_queued: 0,
    cong_update_received: 0,
    cong_send_error: 0,
    tcp_sndbuf_full: 0,
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
    accept_refused: 0,
    accept_pokes: 0,
    accept_replaced: 0,
    dial_failed: 0,
    peers_forgotten: 0,
    local_delivered: 0,
  };
}
