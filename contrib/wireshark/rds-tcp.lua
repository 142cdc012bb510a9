--[[
RDS over TCP for Wireshark and tshark: Linux rds_tcp, and whatever speaks like it, on TCP port 16385.

What travels. One TCP connection carries { 48-byte header, h_len payload bytes } again and again, all big-endian, with
nothing in between; docs/rds-wire.md explains the protocol. A segment may hold many messages, and a message may span
many segments: a header that is cut makes Wireshark wait for the next segment, a payload that is cut for exactly the
bytes that lack.

Being in step. Nothing in the stream marks where a message begins, so a capture that starts in the middle, or that has
a hole, leaves it open. Each direction of a connection is therefore either in step or not:

  in step       since its SYN, or since a header was recognized. The next header is where the last message ended.
  out of step   the capture began in the middle, TCP reports a hole, or what stands where a header must be cannot be
                one. The segment is searched for 48 bytes that only a header looks like (see looks_like_header), and what
                was skipped is shown as such.
  given up      a header in step that claims more than 1 MiB: such a message does not exist, and waiting for it would
                make Wireshark collect up to 4 GiB. From here on the direction is not followed.

Passes. Wireshark dissects a capture once in order, and then any packet at any time. Whatever depends on the order is
decided once and remembered in `notes` by frame and place; usually there is nothing to remember. Steps are decided in
the first pass, as reassembly is. What TCP found out (stream, SYN, hole) is known through fields, which the first pass
of `tshark -2` does not have: there it takes no SYN and no hole into account, and compares sequence numbers later.

Numbers. Lua 5.2 (Wireshark 3.6 to 4.2) and 5.4 (from 4.4 on) have no bit operators in common, so bits are taken by
arithmetic, and 64-bit numbers are compared as two halves.

Sources of the format: rds.h, message.c, tcp_recv.c and cong.c of Linux's net/rds; rds-stress.c of rds-tools.
]]

local RDS_TCP_PORT = 16385
local HEADER_BYTES = 48
local EXTHDR_OFFSET = 32
local MAX_PAYLOAD = 1048576
local CONG_MAP_BYTES = 8192
local STRESS_HEADER_BYTES = 63
-- What is listed of one congestion map, and what is named of one packet in the info column.
local PORTS_SHOWN = 64
local MESSAGES_NAMED = 8
local ZEROS = string.rep("\0", 24)

local rds = Proto("rds", "Reliable Datagram Sockets over TCP")
local stress = Proto("rds.stress", "rds-stress message")

rds.prefs.port = Pref.uint("TCP port", RDS_TCP_PORT, "The port that RDS listens on (0: none)")
rds.prefs.stress = Pref.bool("Recognize rds-stress", true,
  "Show the header of rds-stress in messages whose first 63 bytes agree with the RDS header and the addresses")

-- For dissectors of what programs send: DissectorTable.get("rds.port"):add(4001, proto).
local by_port = DissectorTable.new("rds.port", "RDS port", ftypes.UINT16, base.DEC)

-- Fields ---

local EXT_NAMES = {
  [0] = "NONE", [1] = "VERSION", [2] = "RDMA", [3] = "RDMA_DEST", [4] = "RDMA_BYTES", [5] = "NPATHS", [6] = "GEN_NUM",
  [7] = "CAP_BITS", [8] = "SPORT_IDX", [9] = "CSUM",
}

local f = {
  kind = ProtoField.string("rds.kind", "Kind"),
  lane = ProtoField.uint8("rds.lane", "Lane"),
  dialler = ProtoField.bool("rds.from_dialler", "From the end that dialled"),
  seq = ProtoField.uint64("rds.seq", "Sequence"),
  ack = ProtoField.uint64("rds.ack", "Acknowledgement (not used over TCP)"),
  len = ProtoField.uint32("rds.len", "Payload length"),
  sport = ProtoField.uint16("rds.sport", "Source port"),
  dport = ProtoField.uint16("rds.dport", "Destination port"),
  flags = ProtoField.uint8("rds.flags", "Flags", base.HEX),
  cong_bitmap = ProtoField.bool("rds.flags.cong_bitmap", "Congestion map", 8, nil, 0x01),
  ack_required = ProtoField.bool("rds.flags.ack_required", "Acknowledgement required", 8, nil, 0x02),
  retransmitted = ProtoField.bool("rds.flags.retransmitted", "Retransmitted", 8, nil, 0x04),
  hb_ping = ProtoField.bool("rds.flags.hb_ping", "Heart-beat ping", 8, nil, 0x08),
  hb_pong = ProtoField.bool("rds.flags.hb_pong", "Heart-beat pong", 8, nil, 0x10),
  exthdr_extension = ProtoField.bool("rds.flags.exthdr_extension", "Extended extension headers", 8, nil, 0x20),
  credit = ProtoField.uint8("rds.credit", "Credit"),
  padding = ProtoField.uint32("rds.padding", "Padding", base.HEX),
  csum = ProtoField.uint16("rds.csum", "Checksum", base.HEX),
  exthdr = ProtoField.bytes("rds.exthdr", "Extension headers"),
  ext_type = ProtoField.uint8("rds.ext.type", "Type", base.DEC, EXT_NAMES),
  ext_version = ProtoField.uint32("rds.ext.version", "Version"),
  ext_rkey = ProtoField.uint32("rds.ext.rdma_rkey", "Remote key", base.HEX),
  ext_offset = ProtoField.uint32("rds.ext.rdma_offset", "Offset"),
  ext_bytes = ProtoField.uint32("rds.ext.rdma_bytes", "Bytes"),
  ext_direction = ProtoField.uint8("rds.ext.rdma_direction", "Direction", base.DEC, { [1] = "write", [2] = "read" }),
  ext_npaths = ProtoField.uint16("rds.ext.npaths", "Lanes offered"),
  ext_gen_num = ProtoField.uint32("rds.ext.gen_num", "Generation", base.HEX),
  ext_cap_bits = ProtoField.uint32("rds.ext.cap_bits", "Capabilities", base.HEX),
  ext_sport_idx = ProtoField.uint8("rds.ext.sport_idx", "Lane is in the dialler's port (always 0)"),
  ext_csum = ProtoField.uint32("rds.ext.csum", "Payload checksum", base.HEX),
  payload = ProtoField.bytes("rds.payload", "Payload"),
  cong_count = ProtoField.uint32("rds.cong.count", "Congested ports"),
  cong_port = ProtoField.uint16("rds.cong.port", "Congested port"),
  unread = ProtoField.bytes("rds.unread", "Not dissected"),
}
rds.fields = f

-- In order, each with its offset and length; what is behind them is filler.
local STRESS_FIELDS = {
  { ProtoField.uint32("rds.stress.seq", "Sequence"), 0, 4 },
  { ProtoField.ipv4("rds.stress.from_addr", "From address"), 4, 4 },
  { ProtoField.ipv4("rds.stress.to_addr", "To address"), 8, 4 },
  { ProtoField.uint16("rds.stress.from_port", "From port"), 12, 2 },
  { ProtoField.uint16("rds.stress.to_port", "To port"), 14, 2 },
  { ProtoField.uint16("rds.stress.index", "Index"), 16, 2 },
  { ProtoField.uint8("rds.stress.op", "Operation", base.DEC, { [1] = "REQ", [2] = "ACK" }), 18, 1 },
  { ProtoField.bytes("rds.stress.rdma", "RDMA (not used over TCP)"), 19, 41 },
  { ProtoField.uint8("rds.stress.retry", "Retry"), 60, 1 },
  { ProtoField.uint8("rds.stress.rdma_remote_err", "RDMA remote error"), 61, 1 },
  { ProtoField.uint8("rds.stress.pending", "Pending"), 62, 1 },
}
local filler = ProtoField.bytes("rds.stress.filler", "Filler")
stress.fields = { filler }
for _, field in ipairs(STRESS_FIELDS) do stress.fields = field[1] end

local e = {}
local function problem(name, group, severity, text)
  e[name] = ProtoExpert.new("rds.expert." .. name, text, expert.group[group], expert.severity[severity])
end
problem("retransmitted", "SEQUENCE", "NOTE", "Sent before, on an earlier TCP connection")
problem("seq", "SEQUENCE", "WARN", "Sequence number does not rise within the connection")
problem("oversized", "MALFORMED", "ERROR", "Payload length over 1 MiB; this direction is not followed any further")
problem("cong_length", "MALFORMED", "WARN", "A congestion map has 8192 bytes; receivers ignore this one")
problem("csum", "CHECKSUM", "WARN", "Header checksum is wrong (0 means none; receivers on TCP do not look)")
problem("exthdr", "PROTOCOL", "WARN", "Unknown or damaged extension header")
problem("out_of_step", "REASSEMBLE", "WARN", "Where messages begin is not known here")
problem("cut", "REASSEMBLE", "NOTE", "The rest of the message is not in this segment")
rds.experts = e

-- What TCP found out about the segment. tcp.completeness (since 3.6) has bit 1 once the connection's SYN was seen.
local tcp_stream = Field.new("tcp.stream")
local tcp_lost = Field.new("tcp.analysis.lost_segment")
local has_completeness, tcp_completeness = pcall(Field.new, "tcp.completeness")

-- Memory between packets ---

local directions -- by stream and source port: { synced, stopped; frame, places; hi, lo, seq }
local notes -- by frame and place: { [offset] = { gap = { to, why }, after = text } }
local encodes_lane -- by the dialler's address: it has sent SPORT_IDX

local function forget()
  directions, notes, encodes_lane = {}, {}, {}
end
rds.init = forget
forget()

-- The last value of a field in this packet: that of the innermost TCP layer.
local function last(field)
  local all = { field() }
  local info = all[#all]
  return info and info.value
end

-- Without tcp.stream (see "Passes") a connection is known by its addresses and ports.
local function direction_of(pinfo, stream)
  local key = string.format("%s %d", stream and tostring(stream) or tostring(pinfo.src), pinfo.src_port)
  if stream == nil then key = string.format("%s %s %d", key, tostring(pinfo.dst), pinfo.dst_port) end
  directions[key] = directions[key] or { places = {}, frame = 0 }
  return directions[key]
end

-- The dialler's end is the one whose port is not the well-known one.
local function from_dialler(pinfo)
  return pinfo.dst_port == rds.prefs.port or pinfo.src_port ~= rds.prefs.port
end

-- A call is one piece of stream that TCP hands over; a packet can have several.
local function open_call(tvb, pinfo)
  local key = string.format("%d %d %d", pinfo.number, tvb:offset(), tvb:reported_len())
  local call = { tvb = tvb, pinfo = pinfo, have = tvb:len(), total = tvb:reported_len(), key = key }
  call.notes = notes[key] or {}
  call.stream = last(tcp_stream)
  call.direction = direction_of(pinfo, call.stream)
  if pinfo.visited then return call end
  local completeness = has_completeness and last(tcp_completeness)
  if call.direction.synced == nil and completeness then call.direction.synced = completeness % 2 == 1 end
  -- An expert's field has no value: it is there or not.
  if select("#", tcp_lost()) > 0 then call.direction.synced = false end
  return call
end

local function note(call, at, name, what)
  call.notes[at] = call.notes[at] or {}
  call.notes[at][name] = what
  notes[call.key] = call.notes
end

-- Being in step ---

-- Not range:raw(), which in Wireshark 4.4 begins at the start of the Tvb, whatever the range.
local function string_of(range)
  return range:bytes():raw()
end

-- Big-endian number of `bytes` bytes of a string; offsets count from 0 as in a Tvb. Exact up to 6 bytes.
local function number(raw, at, bytes)
  local value = 0
  for i = at + 1, at + bytes do value = value * 256 + raw:byte(i) end
  return value
end

local function zero(raw, at, bytes)
  return raw:sub(at + 1, at + bytes) == ZEROS:sub(1, bytes)
end

-- Zero in every field that TCP kernels leave zero (acknowledgement, credit, padding, checksum), and no unknown flag.
local function has_zeros(raw, at)
  return zero(raw, at + 8, 8) and zero(raw, at + 25, 7) and raw:byte(at + 25) < 64
end

-- True for 48 bytes that a payload has by accident with next to no probability. Messages of odd but possible looks
-- are refused, too: in step they are dissected all the same.
local function looks_like_header(raw, at)
  if #raw - at < HEADER_BYTES or not has_zeros(raw, at) then return false end
  local length = number(raw, at + 16, 4)
  local sport, dport = number(raw, at + 20, 2), number(raw, at + 22, 2)
  local flags = raw:byte(at + 25)
  if flags == 1 then
    return length == CONG_MAP_BYTES and zero(raw, at, 8) and zero(raw, at + 20, 4) and zero(raw, at + 32, 16)
  end
  if flags ~= 0 and flags ~= 4 then return false end
  if length > MAX_PAYLOAD or zero(raw, at, 8) or sport + dport == 0 then return false end
  if sport * dport == 0 and sport + dport == 1 then
    local first = raw:byte(at + EXTHDR_OFFSET + 1)
    return length == 0 and (first == 0 or (first >= 5 and first <= 9))
  end
  return zero(raw, at + EXTHDR_OFFSET, 16)
end

-- The first place from `from` on that looks like a header, with another behind the message if that is in the segment.
local function find_header(raw, from)
  local at = from
  while #raw - at >= HEADER_BYTES do
    -- Length and ports are never all zero: a run of zeros is passed over in one step.
    local solid = raw:find("[^\0]", at + 17)
    if solid == nil then return nil end
    at = math.max(at, solid - 24)
    if looks_like_header(raw, at) then
      local following = at + HEADER_BYTES + number(raw, at + 16, 4)
      if #raw - following < HEADER_BYTES or looks_like_header(raw, following) then return at end
    end
    at = at + 1
  end
  return nil
end

local function resynchronize(call, at)
  call.raw = call.raw or string_of(call.tvb(0, call.have))
  call.direction.synced = looks_like_header(call.raw, at)
  if call.direction.synced then return nil end
  local found = find_header(call.raw, at + 1)
  call.direction.synced = found ~= nil
  return { to = found or call.total, why = "out of step" }
end

-- First pass only: nil when the header at `at` is to be dissected, else the gap that begins here.
local function judge(call, at)
  local direction = call.direction
  if direction.stopped then return { to = call.total, why = "given up" } end
  local cut = call.have - at < HEADER_BYTES
  -- Where not even TCP knows how the connection began, the first header is worth waiting for.
  if cut and direction.synced == nil then return nil end
  if not direction.synced then return resynchronize(call, at) end
  if cut then return nil end
  if call.tvb(at + 16, 4):uint() <= MAX_PAYLOAD then return nil end
  if not has_zeros(string_of(call.tvb(at, HEADER_BYTES)), 0) then return resynchronize(call, at) end
  direction.stopped = true
  return nil
end

local function gap_at(call, at)
  if not call.pinfo.visited then
    local gap = judge(call, at)
    if gap then note(call, at, "gap", gap) end
  end
  return call.notes[at] and call.notes[at].gap
end

-- True once for each message of a direction, in the order of the capture.
local function comes_first(call, at)
  local direction, frame = call.direction, call.pinfo.number
  local place = call.key .. " " .. at
  if call.stream == nil or frame < direction.frame or direction.places[place] then return false end
  if frame > direction.frame then direction.frame, direction.places = frame, {} end
  direction.places[place] = true
  return true
end

-- Notes a number that is not above the one before it. Maps and 0 -> 0 have no part in the numbering.
local function check_sequence(call, at, kind)
  if kind == "congestion" or kind == "ignored" or not comes_first(call, at) then return end
  local direction = call.direction
  local hi, lo = call.tvb(at, 4):uint(), call.tvb(at + 4, 4):uint()
  if direction.hi and (hi < direction.hi or (hi == direction.hi and lo <= direction.lo)) then
    note(call, at, "after", direction.seq)
  end
  direction.hi, direction.lo, direction.seq = hi, lo, tostring(call.tvb(at, 8):uint64())
end

-- One header ---

local function has_flag(flags, bit)
  return math.floor(flags / bit) % 2 == 1
end

-- In the kernel's order of tests: a map is recognized by the whole flags byte, not by the bit.
local function kind_of(flags, sport, dport)
  if flags == 1 then return "congestion" end
  if dport == 0 then
    if sport == 0 then return "ignored" end
    return sport == 1 and "probe-ping" or "ping"
  end
  if sport ~= 0 then return "data" end
  return dport == 1 and "probe-pong" or "pong"
end

-- The Internet checksum: the sum over all 24 words, with the carries added, is 0xffff.
local function checksum_holds(raw)
  local sum = 0
  for at = 0, HEADER_BYTES - 2, 2 do sum = sum + number(raw, at, 2) end
  while sum > 65535 do sum = sum % 65536 + math.floor(sum / 65536) end
  return sum == 65535
end

local function add_flags(tree, range, flags)
  local item = tree:add(f.flags, range)
  for _, field in ipairs({ f.cong_bitmap, f.ack_required, f.retransmitted, f.hb_ping, f.hb_pong, f.exthdr_extension }) do
    item:add(field, range)
  end
  if has_flag(flags, 4) then item:add_proto_expert_info(e.retransmitted) end
end

-- Payload fields by type: { name of the field, offset, bytes }; `word` is what the info column says.
local EXTENSIONS = {
  [1] = { bytes = 4, { "ext_version", 0, 4 } },
  [2] = { bytes = 4, { "ext_rkey", 0, 4 } },
  [3] = { bytes = 8, { "ext_rkey", 0, 4 }, { "ext_offset", 4, 4 } },
  [4] = { bytes = 8, { "ext_bytes", 0, 4 }, { "ext_direction", 4, 1 } },
  [5] = { bytes = 2, { "ext_npaths", 0, 2 }, word = "NPATHS=%d" },
  [6] = { bytes = 4, { "ext_gen_num", 0, 4 }, word = "GEN_NUM=%08x" },
  [7] = { bytes = 4, { "ext_cap_bits", 0, 4 } },
  [8] = { bytes = 1, { "ext_sport_idx", 0, 1 }, word = "SPORT_IDX" },
  [9] = { bytes = 8, { "ext_csum", 0, 4 } },
}

-- One extension at `at` of the 16 bytes; returns where the next begins, or nil at the end of the list, and a word.
local function add_extension(tree, area, at)
  local kind = area(at, 1):uint()
  if kind == 0 then return nil end
  local known = EXTENSIONS[kind]
  local bytes = known and known.bytes or 0
  local whole = math.min(1 + bytes, area:len() - at)
  local name = EXT_NAMES[kind] or string.format("type %d", kind)
  local item = tree:add(area(at, whole), "Extension: " .. name)
  item:add(f.ext_type, area(at, 1))
  if known == nil then
    item:add_proto_expert_info(e.exthdr, "Unknown extension header: " .. name)
    -- The kernel takes types below 16 for empty ones and goes on; any other ends its list.
    return kind < 16 and at + 1 or nil
  end
  if whole < 1 + bytes then
    item:add_proto_expert_info(e.exthdr, name .. " crosses the end of the header")
    return nil
  end
  local payload = area(at + 1, bytes)
  for _, part in ipairs(known) do item:add(f[part[1]], payload(part[2], part[3])) end
  if kind == 8 and payload:uint() ~= 0 then
    item:add_proto_expert_info(e.exthdr, "The byte behind SPORT_IDX is not 0: older kernels read it as a type")
  end
  local word = known.word
  if word and kind ~= 8 then word = string.format(word, payload:uint()) end
  return at + whole, word
end

-- Returns the words of the info column, as " NPATHS=8 SPORT_IDX".
local function add_extensions(tree, area, pinfo)
  local item = tree:add(f.exthdr, area)
  local words, at = "", 0
  while at and at < area:len() do
    local word
    at, word = add_extension(item, area, at)
    if word then words = words .. " " .. word end
    if word == "SPORT_IDX" and from_dialler(pinfo) then encodes_lane[tostring(pinfo.src)] = true end
  end
  return words
end

-- Adds the derived fields: the kind, and which lane of the two peers this connection is.
local function add_lane(tree, pinfo)
  local mine = from_dialler(pinfo)
  local port = mine and pinfo.src_port or pinfo.dst_port
  local told = encodes_lane[tostring(mine and pinfo.src or pinfo.dst)]
  local guess = told and "" or "; a guess, its SPORT_IDX was not seen"
  local item = tree:add(f.lane, port % 8):set_generated()
  item:append_text(string.format(" (the dialler's port %d modulo 8%s)", port, guess))
  tree:add(f.dialler, mine):set_generated()
end

-- Adds all 48 bytes; returns what the rest needs to know of them.
local function add_header(tree, call, at)
  local range, pinfo = call.tvb(at, HEADER_BYTES), call.pinfo
  local header = { seq = tostring(range(0, 8):uint64()), length = range(16, 4):uint() }
  header.sport, header.dport, header.flags = range(20, 2):uint(), range(22, 2):uint(), range(24, 1):uint()
  header.kind = kind_of(header.flags, header.sport, header.dport)
  check_sequence(call, at, header.kind)
  tree:add(f.kind, header.kind):set_generated()
  local seq = tree:add(f.seq, range(0, 8))
  local after = call.notes[at] and call.notes[at].after
  if after then seq:add_proto_expert_info(e.seq, "Sequence number " .. header.seq .. " comes after " .. after) end
  tree:add(f.ack, range(8, 8))
  local length = tree:add(f.len, range(16, 4))
  if header.length > MAX_PAYLOAD then length:add_proto_expert_info(e.oversized) end
  if header.kind == "congestion" and header.length ~= CONG_MAP_BYTES then length:add_proto_expert_info(e.cong_length) end
  tree:add(f.sport, range(20, 2))
  tree:add(f.dport, range(22, 2))
  add_flags(tree, range(24, 1), header.flags)
  tree:add(f.credit, range(25, 1))
  tree:add(f.padding, range(26, 4))
  local csum = tree:add(f.csum, range(30, 2))
  if range(30, 2):uint() ~= 0 and not checksum_holds(string_of(range)) then csum:add_proto_expert_info(e.csum) end
  header.words = add_extensions(tree, range(EXTHDR_OFFSET, 16), pinfo)
  add_lane(tree, pinfo)
  return header
end

-- Payloads ---

-- Calls back with each port that is set: bit (port modulo 8), lowest first, of byte (port / 8).
local function each_port(raw, callback)
  local at = raw:find("[^\0]")
  while at do
    local bits = raw:byte(at)
    for bit = 0, 7 do
      if has_flag(bits, 2 ^ bit) then callback((at - 1) * 8 + bit, at - 1) end
    end
    at = raw:find("[^\0]", at + 1)
  end
end

-- Returns the map in words.
local function add_map(tree, range, header)
  local item = tree:add(f.payload, range)
  if header.length ~= CONG_MAP_BYTES then return " of a wrong length" end
  item:set_text("Congestion map")
  local count, named = 0, {}
  each_port(string_of(range), function(port, at)
    count = count + 1
    if count > PORTS_SHOWN then return end
    item:add(f.cong_port, range(at, 1), port)
    named[count] = string.format("%d", port)
  end)
  item:add(f.cong_count, count):set_generated()
  if count > PORTS_SHOWN then item:append_text(string.format(" (the first %d of %d ports)", PORTS_SHOWN, count)) end
  if count == 0 then return " nothing congested" end
  local first = table.concat(named, " ", 1, math.min(count, 4))
  return string.format(" %d congested: %s%s", count, first, count > 4 and " ..." or "")
end

-- All that rds-stress's own receiver compares and that can be known here, and zero where TCP leaves zero.
local function is_stress(range, header, pinfo)
  if range:len() < STRESS_HEADER_BYTES or not rds.prefs.stress then return false end
  local op = range(18, 1):uint()
  if op ~= 1 and op ~= 2 then return false end
  if range(12, 2):uint() ~= header.sport or range(14, 2):uint() ~= header.dport then return false end
  if not string_of(range(19, 41)):find("^\0+$") or range(61, 2):uint() ~= 0 then return false end
  return range(4, 4):ipv4() == pinfo.src and range(8, 4):ipv4() == pinfo.dst
end

local function add_stress(tree, range)
  local item = tree:add(stress, range)
  for _, field in ipairs(STRESS_FIELDS) do item:add(field[1], range(field[2], field[3])) end
  if range:len() > STRESS_HEADER_BYTES then item:add(filler, range(STRESS_HEADER_BYTES)) end
  local text = string.format("%s %d", range(18, 1):uint() == 1 and "REQ" or "ACK", range(0, 4):uint())
  item:append_text(", " .. text)
  return " rds-stress " .. text
end

-- A dissector that was registered for either RDS port comes first, then rds-stress, then plain bytes.
local function add_data(tree, range, header, pinfo)
  local program = by_port:get_dissector(header.dport) or by_port:get_dissector(header.sport)
  if program and program:call(range:tvb(), pinfo, tree) > 0 then return "" end
  if is_stress(range, header, pinfo) then return add_stress(tree, range) end
  tree:add(f.payload, range)
  return ""
end

local function add_payload(tree, call, at, header)
  local there = math.min(header.length, call.have - at)
  if header.length > MAX_PAYLOAD or there <= 0 then return "" end
  local range = call.tvb(at, there)
  if there < header.length then
    local text = string.format("%d of %d payload bytes are here", there, header.length)
    tree:add(f.payload, range):add_proto_expert_info(e.cut, text)
    return ""
  end
  if header.kind == "congestion" then return add_map(tree, range, header) end
  if header.kind == "data" then return add_data(tree, range, header, call.pinfo) end
  tree:add(f.payload, range)
  return ""
end

-- Packets ---

-- Appends to the info column. pinfo.private lasts as long as the dissection of this packet; it counts what was named.
local function name_in_columns(pinfo, text)
  local named = tonumber(pinfo.private.rds_named) or 0
  pinfo.private.rds_named = string.format("%d", named + 1)
  if named == 0 then
    pinfo.cols.protocol:set("RDS")
    pinfo.cols.info:set(text)
  elseif named < MESSAGES_NAMED then
    pinfo.cols.info:append("; " .. text)
  elseif named == MESSAGES_NAMED then
    pinfo.cols.info:append("; ...")
  end
  -- What TCP writes for the next message of the same packet must not wipe this out.
  pinfo.cols.info:fence()
end

local function summary(header)
  local marks = has_flag(header.flags, 4) and " RETRANSMITTED" or ""
  if header.kind == "congestion" then return "congestion map" end
  return string.format("%s %d > %d Seq=%s Len=%d", header.kind, header.sport, header.dport, header.seq, header.length)
    .. marks .. header.words
end

-- Shows the message at `at`; returns its end.
local function add_message(call, at, root)
  local length = call.tvb(at + 16, 4):uint()
  -- What is too long is shown by its header alone.
  local claimed = length > MAX_PAYLOAD and 0 or length
  local tree = root:add(rds, call.tvb(at, math.min(HEADER_BYTES + claimed, call.have - at)))
  local header = add_header(tree, call, at)
  local text = summary(header) .. add_payload(tree, call, at + HEADER_BYTES, header)
  if length > MAX_PAYLOAD then text = text .. " [over 1 MiB]" end
  tree:append_text(", " .. text)
  name_in_columns(call.pinfo, text)
  return math.min(at + HEADER_BYTES + claimed, call.total)
end

local function add_gap(call, at, gap, root)
  local range = call.tvb(at, math.min(gap.to, call.have) - at)
  local tree = root:add(rds, range)
  tree:append_text(string.format(", %d bytes that are not dissected (%s)", range:len(), gap.why))
  local item = tree:add(f.unread, range)
  if gap.why == "out of step" then item:add_proto_expert_info(e.out_of_step) end
  if gap.why == "cut header" then item:add_proto_expert_info(e.cut) end
  name_in_columns(call.pinfo, string.format("[%s: %d bytes]", gap.why, gap.to - at))
  return gap.to
end

-- True when the message at `at` is not whole and TCP was asked to come again with the rest, or, if not even the header
-- is there, with any more. Without reassembly (a preference, or packets that the capture cut) it never does.
local function waits(call, at)
  local wanted = 0
  if call.total - at < HEADER_BYTES then
    wanted = DESEGMENT_ONE_MORE_SEGMENT
  elseif call.have - at >= HEADER_BYTES then
    local length = call.tvb(at + 16, 4):uint()
    if length <= MAX_PAYLOAD then wanted = math.max(0, at + HEADER_BYTES + length - call.total) end
  end
  if wanted == 0 then return false end
  if call.pinfo.can_desegment > 0 then
    call.pinfo.desegment_offset, call.pinfo.desegment_len = at, wanted
    return true
  end
  if not call.pinfo.visited then call.direction.synced = false end
  return false
end

function rds.dissector(tvb, pinfo, root)
  local call, at = open_call(tvb, pinfo), 0
  while at < call.have do
    local gap = gap_at(call, at)
    if gap then
      at = add_gap(call, at, gap, root)
    elseif waits(call, at) then
      break
    elseif call.have - at < HEADER_BYTES then
      at = add_gap(call, at, { to = call.total, why = "cut header" }, root)
    else
      at = add_message(call, at, root)
    end
  end
  return call.total
end

-- Port ---

local tcp_port = DissectorTable.get("tcp.port")
local registered = 0
local function register()
  if registered ~= 0 then tcp_port:remove(registered, rds) end
  registered = rds.prefs.port
  if registered ~= 0 then tcp_port:add(registered, rds) end
end

rds.prefs_changed = register
register()
tcp_port:add_for_decode_as(rds)
