"""The Lua scripts of the Redis store: each runs alone, from its first check to its last write.

Keys of a group, all under ``onceflow:{group}:``

    layout            the version
    positions         hash: "topic-partition" to "epoch next_offset owner" (next_offset is empty at first)
    sequences:<place> hash: source to highest sequence
    ids               sorted set: source NUL id, by the time it was handled in microseconds
    claims            hash: source NUL id to JSON [place, offset, sequence, lease in ms or null]
    open:<place>, early:<place>   sorted sets: the open and the early confirmed claims of a partition, by offset
"""

from __future__ import annotations

TAKE = """
local raw, now, following = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('TIME'), ''
local epoch = now[1] * 1000 + math.floor(now[2] / 1000)
if raw then
    local before, offset = string.match(raw, '^(%d+) (%d*) ')
    epoch, following = math.max(epoch, before + 1), offset
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s %s', epoch, following, ARGV[2]))
for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    redis.call('HDEL', KEYS[2], member)
end
redis.call('DEL', KEYS[3])
return {string.format('%.0f', epoch), following}
"""

# ARGV: the keys' prefix, a JSON object of what to check and to write, and the handlers' commands, word by word. All checks come
# before the first write, and the first write is one of ours: where Redis has no memory left it is refused with all the rest.
# A command of a handler that is refused cannot undo the others, so all of them run, and the refusals are told.
APPLY = """
local prefix, asked = ARGV[1], cjson.decode(ARGV[2])
local positions, ids, claims = prefix .. 'positions', prefix .. 'ids', prefix .. 'claims'
local SLICE = 1000

for _, each in ipairs(asked.positions) do
    if redis.call('HGET', positions, each[1]) ~= each[2] then
        return {'moved', each[1]}
    end
end
for _, members in ipairs({asked.ids, asked.absent}) do
    for first = 1, #members, SLICE do
        local last = math.min(first + SLICE - 1, #members)
        for _, score in ipairs(redis.call('ZMSCORE', ids, unpack(members, first, last))) do
            if score then
                return {'changed', ids}
            end
        end
    end
end
for _, each in ipairs(asked.claims) do
    if (redis.call('HGET', claims, each[1]) or '') ~= each[2] then
        return {'changed', claims}
    end
end

for _, each in ipairs(asked.positions) do
    redis.call('HSET', positions, each[1], each[3])
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
for first = 1, #asked.ids, SLICE do
    local members = {}
    for place = first, math.min(first + SLICE - 1, #asked.ids) do
        members[#members + 1] = now
        members[#members + 1] = asked.ids[place]
    end
    redis.call('ZADD', ids, unpack(members))
end
for _, each in ipairs(asked.sequences) do
    redis.call('HSET', prefix .. 'sequences:' .. each[1], each[2], each[3])
end
for _, each in ipairs(asked.claims) do
    local member, before, after = each[1], each[2], each[3]
    if before ~= '' then
        local place = cjson.decode(before)[1]
        redis.call('ZREM', prefix .. 'open:' .. place, member)
        redis.call('ZREM', prefix .. 'early:' .. place, member)
        redis.call('HDEL', claims, member)
    end
    if after ~= '' then
        local claim = cjson.decode(after)
        local kind = claim[4] == cjson.null and 'early:' or 'open:'
        redis.call('ZADD', prefix .. kind .. claim[1], claim[2], member)
        redis.call('HSET', claims, member, after)
    end
end

local at, refused = 3, {}
for _, count in ipairs(asked.commands) do
    local answer = redis.pcall(unpack(ARGV, at, at + count - 1))
    if type(answer) == 'table' and answer.err then
        refused[#refused + 1] = ARGV[at] .. ': ' .. answer.err
    end
    at = at + count
end
if #refused > 0 then
    return {'refused', table.concat(refused, '; ')}
end
return {'done', ''}
"""

# KEYS: ids. ARGV: microseconds before which an id is too old, and how many ids stay. Both bounds must be exceeded.
FORGET = """
local old = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
local surplus = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2])
local count = math.min(old, surplus)
if count <= 0 then
    return 0
end
return redis.call('ZREMRANGEBYRANK', KEYS[1], 0, count - 1)
"""
