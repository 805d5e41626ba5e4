package cache

import (
	"strconv"
	"sync"
)

// Slots of a Redis Cluster.
const Slots = 16384

// slotOf is CRC16 (XMODEM) of a hash tag, modulo Slots, as Redis Cluster's
// specification has it.
func slotOf(tag string) uint16 {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % Slots
}

// tagOfSlot is a short tag that lies in the slot.
func tagOfSlot(slot uint16) string { return slotTags()[slot] }

var slotTags = sync.OnceValue(func() []string {
	tags := make([]string, Slots)
	for n, left := 0, Slots; left > 0; n++ {
		tag := strconv.Itoa(n)
		if at := slotOf(tag); tags[at] == "" {
			tags[at] = tag
			left--
		}
	}
	return tags
})
