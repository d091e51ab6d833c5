package nodestatus

import goruntime "runtime"

const (
	osName   = goruntime.GOOS
	archName = goruntime.GOARCH
)
