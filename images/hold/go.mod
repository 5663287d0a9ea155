module warmroute.dev/hold

go 1.26
