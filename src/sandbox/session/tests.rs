use super::*;

#[test]
fn variables_say_what_is_true_inside() {
    let variables = [
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere"),
        ("DBUS_STARTER_BUS_TYPE", "session"),
        ("SSH_AUTH_SOCK", "/nowhere/agent"),
        ("DISPLAY", ":0"),
        ("EDITOR", "vi"),
    ]
    .map(|(name, value)| (name.into(), value.into()));
    let outside = Outside {
        home: Path::new("/nowhere"),
        uid: 1500,
        variables: &variables,
        same_network: false,
        xdg_open: None,
    };
    let mut layout = Layout::default();
    layout.push(Mount::Tmpfs("/run".into()));
    let session = session(&mut layout, &Services::default(), &outside);
    let unset = [
        "DBUS_SESSION_BUS_ADDRESS",
        "DBUS_STARTER_BUS_TYPE",
        "SSH_AUTH_SOCK",
        "DISPLAY",
    ];
    assert_eq!(session.variables.unset, unset.map(OsString::from));
    let set = [("XDG_RUNTIME_DIR", "/run/user/1500"), ("BROWSER", BROWSER)];
    assert_eq!(
        session.variables.set,
        set.map(|(n, v)| (n.into(), v.into()))
    );
    assert_eq!(session.warnings, [""; 0]);
    let args = layout.args().join(OsStr::new(" ")).into_string().unwrap();
    assert_eq!(
        args,
        "--tmpfs /run --perms 0555 --file 14 /.claude-isolated/browser --perms 0700 --dir /run/user/1500"
    );
}
