package netannotation

import (
	"encoding/json"
	"time"
)

// WireGuard is the annotation of a Node with its public keys, by which other nodes encrypt pod traffic to it and accept
// its traffic. Its value is that of WireGuardKeys.
const WireGuard = "network.hyperkube.io/wireguard"

// WireGuardKeys are the public keys of a node, encoded in base64.
type WireGuardKeys struct {
	// Key is the key that the node uses. Created is when it was created.
	Key     string    `json:"key"`
	Created time.Time `json:"created"`
	// Next is the key that the node uses soon. It is empty if there is none.
	Next string `json:"next,omitempty"`
}

// ParseWireGuard returns the keys in a value of the annotation WireGuard, or none if it is invalid.
func ParseWireGuard(value string) WireGuardKeys {
	var keys WireGuardKeys
	if value == "" || json.Unmarshal([]byte(value), &keys) != nil {
		return WireGuardKeys{}
	}
	return keys
}

// FormatWireGuard returns the value of the annotation WireGuard.
func FormatWireGuard(keys WireGuardKeys) string {
	text, err := json.Marshal(keys)
	if err != nil {
		return "" // a year that JSON cannot represent
	}
	return string(text)
}
