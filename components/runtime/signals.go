//go:build cgo

package runtime

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
)

// parseSignal parses the stop signal of an image or container: a name with or without "SIG", such as "SIGTERM" or
// "RTMIN+3", or a number. Unknown signals become SIGTERM.
func parseSignal(name string) unix.Signal {
	name = strings.ToUpper(strings.TrimSpace(name))
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= 64 {
		return unix.Signal(n)
	}
	name = strings.TrimPrefix(name, "SIG")
	// Real-time signals start at 34 for programs, because the C library reserves 32 and 33.
	for prefix, base := range map[string]int{"RTMIN": 34, "RTMAX": 64} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		rest = strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(rest)
		n := 0
		if rest != "" {
			var err error
			if n, err = strconv.Atoi(rest); err != nil {
				continue
			}
		}
		if base+n >= 34 && base+n <= 64 {
			return unix.Signal(base + n)
		}
	}
	switch name {
	case "CLD":
		name = "CHLD"
	case "POLL":
		name = "IO"
	case "IOT":
		name = "ABRT"
	}
	if s := unix.SignalNum("SIG" + name); s != 0 {
		return s
	}
	return unix.SIGTERM
}

// signalNumber converts a stop signal to its CRI constant for the container status. Empty and unknown names become
// SIGTERM.
func signalNumber(name string) runtimeapi.Signal {
	if name == "" {
		return runtimeapi.Signal_SIGNAL_SIGTERM
	}
	n := parseSignal(name)
	text := unix.SignalName(n)
	switch {
	case n == 34:
		text = "SIGRTMIN"
	case n == 64:
		text = "SIGRTMAX"
	case n > 34 && n <= 49:
		text = fmt.Sprintf("SIGRTMINPLUS%d", n-34)
	case n > 49:
		text = fmt.Sprintf("SIGRTMAXMINUS%d", 64-n)
	}
	if v, ok := runtimeapi.Signal_value["SIGNAL_"+text]; ok {
		return runtimeapi.Signal(v)
	}
	return runtimeapi.Signal_SIGNAL_SIGTERM
}

// stopSignal returns the name of the signal that StopContainer sends: that of the container's configuration, else that
// of the image. It is empty if neither specifies one, which means SIGTERM.
func stopSignal(config *runtimeapi.ContainerConfig, image images.Config) string {
	if s := config.GetStopSignal(); s != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return strings.TrimPrefix(s.String(), "SIGNAL_")
	}
	return image.StopSignal
}
