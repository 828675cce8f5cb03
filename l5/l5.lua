-- Wireshark's dissector for the frames that `l5 dump` and `l5.tap` record (link type USER0).
-- Use: wireshark -X lua_script:"$(l5 dump --dissector)" frames.pcapng

local l5 = Proto("l5", "l5 frames")

local kinds = {
    [1] = "DATA", [2] = "REQUEST", [3] = "RESPONSE", [4] = "ERROR", [5] = "CANCEL",
    [6] = "CREDIT", [7] = "HEARTBEAT", [8] = "CLOSE", [9] = "ABORT",
}

local f = {
    direction = ProtoField.uint8("l5.direction", "Direction", base.DEC, { [0] = "received", [1] = "sent" }),
    pid = ProtoField.uint32("l5.pid", "Process"),
    connection = ProtoField.uint32("l5.connection", "Connection"),
    transport = ProtoField.string("l5.transport", "Transport"),
    size = ProtoField.uint32("l5.size", "Payload size"),
    kind = ProtoField.uint8("l5.kind", "Kind", base.DEC, kinds),
    flags = ProtoField.uint8("l5.flags", "Flags", base.HEX),
    more = ProtoField.bool("l5.flags.more", "More segments follow", 8, nil, 0x01),
    deadline_flag = ProtoField.bool("l5.flags.deadline", "Begins with a deadline", 8, nil, 0x02),
    for_response = ProtoField.bool("l5.flags.for_response", "The id is the receiver's", 8, nil, 0x04),
    id = ProtoField.uint64("l5.id", "Id"),
    payload = ProtoField.bytes("l5.payload", "Payload"),
    deadline = ProtoField.uint32("l5.deadline_us", "Deadline (us left)"),
    credit = ProtoField.uint64("l5.credit", "May be sent in all"),
    busy = ProtoField.uint32("l5.busy_millionths", "Busy share (millionths)"),
    error_type = ProtoField.string("l5.error.type", "Error type"),
    error_message = ProtoField.string("l5.error.message", "Error message"),
    request_in = ProtoField.framenum("l5.request_in", "Request in", base.NONE, frametype.REQUEST),
    latency = ProtoField.double("l5.latency_us", "Time since the request (us)"),
}
l5.fields = f

local cut = ProtoExpert.new("l5.cut", "Payload cut by the snap length", expert.group.UNDECODED, expert.severity.NOTE)
local malformed = ProtoExpert.new("l5.malformed", "Not a frame of l5", expert.group.MALFORMED, expert.severity.ERROR)
l5.experts = { cut, malformed }

local requests, answers = {}, {}

function l5.init()
    requests, answers = {}, {}
end

-- Which request an answer belongs to: it goes the other way, on the same connection.
local function match(pinfo, pid, connection, direction, kind, id)
    if kind == 2 then
        local key = pid .. "/" .. connection .. "/" .. direction .. "/" .. id
        if not pinfo.visited and not requests[key] then
            requests[key] = { number = pinfo.number, time = pinfo.abs_ts }
        end
    elseif (kind == 3 or kind == 4) and not pinfo.visited then
        answers[pinfo.number] = requests[pid .. "/" .. connection .. "/" .. (1 - direction) .. "/" .. id]
    end
    return answers[pinfo.number]
end

local function contents(kind, flags, body, tree)
    if kind == 2 and flags % 4 >= 2 and body:len() >= 4 then
        tree:add_le(f.deadline, body(0, 4))
    elseif kind == 6 and body:len() == 8 then
        tree:add_le(f.credit, body(0, 8))
    elseif kind == 7 and body:len() == 12 then
        tree:add_le(f.busy, body(8, 4))
    elseif kind == 4 and body:len() >= 2 then
        local length = body(0, 2):le_uint()
        if body:len() >= 2 + length then
            tree:add(f.error_type, body(2, length))
            if body:len() > 2 + length then
                tree:add(f.error_message, body(2 + length))
            end
        end
    end
end

function l5.dissector(buffer, pinfo, root)
    pinfo.cols.protocol = "L5"
    local tree = root:add(l5, buffer(), "l5 frame")
    if buffer:len() < 12 or buffer(0, 1):uint() ~= 1 or buffer:len() < 28 + buffer(3, 1):uint() then
        tree:add_proto_expert_info(malformed)
        return
    end
    local name_length = buffer(3, 1):uint()
    local direction, pid, connection = buffer(1, 1):uint(), buffer(4, 4):le_uint(), buffer(8, 4):le_uint()
    tree:add(f.direction, buffer(1, 1))
    tree:add_le(f.pid, buffer(4, 4))
    tree:add_le(f.connection, buffer(8, 4))
    tree:add(f.transport, buffer(12, name_length))

    local at = 12 + name_length
    local size, kind = buffer(at, 4):le_uint(), buffer(at + 4, 1):uint()
    local flags, id = buffer(at + 5, 1):uint(), buffer(at + 8, 8):le_uint64()
    tree:add_le(f.size, buffer(at, 4))
    tree:add(f.kind, buffer(at + 4, 1))
    local bits = tree:add(f.flags, buffer(at + 5, 1))
    bits:add(f.more, buffer(at + 5, 1))
    bits:add(f.deadline_flag, buffer(at + 5, 1))
    bits:add(f.for_response, buffer(at + 5, 1))
    tree:add_le(f.id, buffer(at + 8, 8))

    local here = buffer:len() - at - 16
    if here > 0 then
        local body = buffer(at + 16)
        local payload = tree:add(f.payload, body)
        contents(kind, flags, body, tree)
        if here < size then
            payload:add_proto_expert_info(cut)
        end
    end
    local request = match(pinfo, pid, connection, direction, kind, tostring(id))
    if request then
        tree:add(f.request_in, request.number):set_generated()
        tree:add(f.latency, (pinfo.abs_ts - request.time) * 1e6):set_generated()
    end
    local arrow = direction == 1 and "->" or "<-"
    pinfo.cols.info = string.format("#%d %s %s id=%s, %d bytes", connection, arrow, kinds[kind] or kind, tostring(id), size)
    pinfo.cols.src = direction == 1 and "process " .. pid or "peer"
    pinfo.cols.dst = direction == 1 and "peer" or "process " .. pid
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, l5)
