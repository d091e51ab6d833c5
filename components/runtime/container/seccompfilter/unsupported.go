package seccompfilter

import "errors"

// ErrUnsupported means that Compile does not support the profile. libcontainer may support it.
var ErrUnsupported = errors.New("seccomp profile is not supported")
