package packaging

import (
	"strings"
	"testing"
)

func TestUnit(t *testing.T) {
	if got := Unit(Command); got != unit {
		t.Errorf("the unit of the packages differs:\n%s", got)
	}
	const command = "/opt/bin/hyperkube up"
	got := Unit(command)
	if !strings.Contains(got, "\nExecStart="+command+"\n") || strings.Contains(got, "/usr/bin/hyperkube") {
		t.Errorf("the unit does not start %s:\n%s", command, got)
	}
	// Pods must survive a restart of the service.
	for _, line := range []string{"Type=notify", "KillMode=process", "Delegate=yes"} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("no line %s:\n%s", line, got)
		}
	}
}
